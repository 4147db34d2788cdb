package checks

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// Where a neighbour answers, the gateway is at fault, and where none of several does, the VLAN; without neighbours
// either may be.
func TestSilentGateway(t *testing.T) {
	for _, c := range []struct {
		vlan      uint16
		answering []string
		others    int
		kind      string
		want      []string // in the cause, and in the first remedy
	}{
		{10, []string{"192.0.2.9"}, 1, "gateway-silent", []string{"in VLAN 10, although frames pass: 192.0.2.9 answers", "Check the gateway"}},
		{10, nil, 1, "vlan-silent", []string{"neither does the other neighbour that they know", "carries VLAN 10", "tcpdump -eni NIC vlan 10"}},
		{0, nil, 4, "vlan-silent", []string{"neither does any of 4 other neighbours", "carries the untagged network", "tcpdump -eni NIC not vlan"}},
		{0, nil, 0, "gateway-silent", []string{"in the untagged network: it is down, or", "Run this check on another node"}},
	} {
		f := segment{c.vlan, "192.0.2.1"}.finding([]string{"pod ns/a"}, c.answering, c.others)
		text := f.Cause + "\n" + f.Remedies[0].Text + "\n" + strings.Join(f.Remedies[0].Commands, "\n")
		for _, want := range append(c.want, "the gateway 192.0.2.1 does not answer") {
			if !strings.Contains(text, want) {
				t.Errorf("%+v: %q is missing in %q", c, want, text)
			}
		}
		if f.Kind != c.kind || f.Severity != report.Failing || !strings.Contains(fmt.Sprint(f.Evidence), "pod ns/a") {
			t.Errorf("%+v: %+v", c, f)
		}
	}
}

// A pod whose network namespace cannot be examined is not reported as one without a gateway.
func TestPodThatCannotBeProbed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pod := api.Attachment{PodNamespace: "ns", PodName: "a", IfName: "eth0", Netns: os.DevNull}
	found, notKnown := segment{10, "192.0.2.1"}.check(ctx, []api.Attachment{pod}, nil)
	if len(found) > 0 || len(notKnown) != 1 || !strings.HasPrefix(notKnown[0], "whether pod ns/a reaches its gateway: its network namespace cannot") {
		t.Errorf("found %+v, not known %q", found, notKnown)
	}
}
