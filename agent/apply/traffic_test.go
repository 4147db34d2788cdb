package apply

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/openflow"
)

// Nodes that do not answer packets are found by when their flows last matched one.
func TestUnanswered(t *testing.T) {
	const never = -1
	for _, c := range []struct {
		name                    string
		fromPods, fromHost, got time.Duration
		want                    bool
	}{
		{"nothing is sent", never, never, never, false},
		{"sent, and nothing arrives", 1, never, never, true},
		{"the node itself sends, and nothing arrives", never, 1, never, true},
		{"an exchange", 1, never, 1, false},
		{"an exchange that is over", 14, never, 14, false},
		{"the last word, and counters that are gathered now and then", 2, never, 6, false},
		{"answers have ceased", 1, never, 9, true},
		{"pods' are answered long ago, the node's of late", 12, 2, 3, false},
		{"what was sent is too long ago to tell", 16, never, never, false},
		{"only they send", never, never, 1, false},
	} {
		traffic, podCIDR := newTraffic(), netip.MustParsePrefix("10.77.3.0/24")
		flow := func(m openflow.Match, idle time.Duration) {
			if idle != never {
				traffic.flow(&openflow.Flow{Match: m}, idle*time.Second)
			}
		}
		flow(openflow.Match{Dst: podCIDR, Source: openflow.FromPod}, c.fromPods)
		flow(openflow.Match{Dst: podCIDR, Source: openflow.FromGateway}, c.fromHost)
		flow(openflow.Match{Src: podCIDR}, c.got)
		flow(openflow.Match{Src: netip.MustParsePrefix("10.77.4.0/24")}, 0)
		if got := traffic.unanswered(); slices.Contains(got, podCIDR) != c.want || len(got) > 1 {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
