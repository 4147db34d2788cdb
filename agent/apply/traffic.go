package apply

import (
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/openflow"
)

const (
	// sentWithin is how old the last packet to another node may be for an answer to be expected: the interval between two
	// lists of the flows.
	sentWithin = 15 * time.Second
	// answeredWithin is how long after the last packet from a node a packet may have been sent to it for both to belong to
	// one exchange. The last packet of a connection is usually sent within this time, and counters are gathered each
	// second.
	answeredWithin = 5 * time.Second
)

// traffic is how long ago the flows of other nodes carried packets, by podCIDR. It sends no packets of its own, and
// uses the list of flows by which the switch is verified.
type traffic struct {
	sent, received map[netip.Prefix]time.Duration
}

func newTraffic() traffic {
	return traffic{sent: map[netip.Prefix]time.Duration{}, received: map[netip.Prefix]time.Duration{}}
}

// flow records a flow of a peer.
func (t *traffic) flow(f *openflow.Flow, idle time.Duration) {
	of, podCIDR := t.received, f.Match.Src
	if f.Match.Dst.IsValid() { // there are two such flows, for pods and for this node
		of, podCIDR = t.sent, f.Match.Dst
	}
	if before, there := of[podCIDR]; !there || idle < before {
		of[podCIDR] = idle
	}
}

// unanswered are the podCIDRs, in order, to which packets were sent recently while none came back.
func (t *traffic) unanswered() (out []netip.Prefix) {
	for podCIDR, sent := range t.sent {
		received, heard := t.received[podCIDR]
		if sent <= sentWithin && (!heard || received > sent+answeredWithin) {
			out = append(out, podCIDR)
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}
