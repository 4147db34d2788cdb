package apply

import (
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/openflow"
)

const (
	// stillSent is how long ago the last packet to another node may be for it to be waited for an answer: between two
	// looks at the flows.
	stillSent = 15 * time.Second
	// answered is how much later than the last packet from a node one may have been sent to it for both to belong to one
	// exchange. The last word of a connection is as a rule sent within it, and counters are gathered each second.
	answered = 5 * time.Second
)

// traffic is what the flows of other nodes have carried of late, by podCIDR: how long ago it was. It takes no packet of
// its own, and no list but that by which what the switch has is compared.
type traffic struct {
	sent, received map[netip.Prefix]time.Duration
}

func newTraffic() traffic {
	return traffic{sent: map[netip.Prefix]time.Duration{}, received: map[netip.Prefix]time.Duration{}}
}

// flow takes in one of a peer.
func (t *traffic) flow(f *openflow.Flow, idle time.Duration) {
	of, podCIDR := t.received, f.Match.Src
	if f.Match.Dst.IsValid() { // there are two, for pods and for this node
		of, podCIDR = t.sent, f.Match.Dst
	}
	if before, there := of[podCIDR]; !there || idle < before {
		of[podCIDR] = idle
	}
}

// unanswered are the podCIDRs, in order, to which packets were sent of late while none came from there.
func (t *traffic) unanswered() (out []netip.Prefix) {
	for podCIDR, sent := range t.sent {
		received, heard := t.received[podCIDR]
		if sent <= stillSent && (!heard || received > sent+answered) {
			out = append(out, podCIDR)
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}
