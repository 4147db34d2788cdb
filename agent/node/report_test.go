package node

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"

	"github.com/fairlead-cni/fairlead/api"
)

// While the uplink is not attached yet, users are not asked to move addresses.
func TestTunnelEvent(t *testing.T) {
	if got := tunnelEvent(errors.New("no tunnel"), false); got != "no tunnel" {
		t.Errorf("a tunnel that cannot work: %q", got)
	}
	if got := tunnelEvent(errors.New("no tunnel"), true) + tunnelEvent(nil, false); got != "" {
		t.Errorf("an uplink that is not attached, or a tunnel that works: %q", got)
	}
}

// A refused peer is logged when it becomes refused and when it no longer is, not in each round.
func TestRefusedPeersAreReportedOnce(t *testing.T) {
	n := newTestNode(t, api.AgentConfig{}, nowhere(t))
	var told []string
	n.Log = funcr.New(func(_, args string) { told = append(told, args) }, funcr.Options{})
	const refused, over = `"peer refused" "problem"=`, `"peer no longer refused" "problem"=`
	for i, c := range []struct{ problems, want []string }{
		{[]string{"a"}, []string{refused + `"a"`}},
		{[]string{"a", "b"}, []string{refused + `"b"`}},
		{[]string{"a", "b"}, nil},
		{[]string{"b"}, []string{over + `"a"`}},
		{nil, []string{over + `"b"`}},
	} {
		told = nil
		n.logProblems(c.problems)
		if !slices.EqualFunc(told, c.want, strings.HasSuffix) {
			t.Errorf("round %d: %q, want %q", i, told, c.want)
		}
	}
}
