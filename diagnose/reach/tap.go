package reach

import (
	"fmt"

	"github.com/fairlead-cni/fairlead/api"
)

const (
	// TapFor is for how many packets of each end a failing path is tapped, and TapForFull for one that passes no
	// full-size packets, as only every third is full-size.
	TapFor, TapForFull = 6, 11
	// FullFrame is longer than a frame with a small packet in a tunnel, and shorter than one with a full packet, in bytes.
	FullFrame = 600
	// few packets in a tap may be chance: a peer may start or stop sending just then.
	few, fewFull = 3, 2
)

// stays reports whether this node's packets do not leave it.
func stays(t api.ReachTap, full bool) bool {
	if full {
		return t.Left >= few && t.Sent >= few*fullEvery && t.LeftFull == 0
	}
	return t.Sent > few && t.Left == 0
}

// leaves reports whether packets to the other node leave this one.
func leaves(t api.ReachTap, full bool) bool {
	return !t.Inside && t.Left >= few && (!full || t.LeftFull >= fewFull)
}

// arrives reports whether the other node's packets arrive at this one, although its end does not hear them.
func arrives(t api.ReachTap, full bool) bool {
	return full && t.ArrivedFull >= fewFull || !full && t.Arrived >= few
}

// badChecksums reports whether the other node's packets arrive with wrong checksums.
func badChecksums(t api.ReachTap) bool {
	return arrives(t, false) && t.ArrivedSums == api.ChecksumsWrong
}

// absent reports whether none of the other node's packets arrive at this one.
func absent(t api.ReachTap, full bool) bool {
	return !t.Began.IsZero() && t.Sent > few && (t.Arrived == 0 || full && t.ArrivedFull == 0)
}

// outboundFault is why packets do not leave a node, called name in the text; none: they leave, or it is not known. If
// the other node answers no ping, the reason may be that no neighbour is found to send them to.
func outboundFault(name string, t api.ReachTap, full bool, echo Answer) (Cause, string) {
	switch {
	case !stays(t, full):
		return CauseNone, ""
	case t.NoRoute != "":
		return CauseRoute, fmt.Sprintf("the kernel of %s does not forward them: %s", name, t.NoRoute)
	case echo != Answered:
		return CauseNone, ""
	}
	return CauseDropped, fmt.Sprintf("they do not leave %s through any interface: its firewall, kernel or Open vSwitch drops them", name)
}

// inboundFault is why packets do not reach the pods of a node, called name in the text; none: none arrive, or it is
// not known.
func inboundFault(name string, t api.ReachTap, full bool) (Cause, string) {
	switch {
	case t.Unheld != "" && t.Arrived == 0 && absent(t, full):
		return CauseAddress, fmt.Sprintf("no interface of %s has %s, the address of its Node, to which others send", name, t.Unheld)
	case !arrives(t, full):
		return CauseNone, ""
	case t.Source != "":
		return CauseSource, fmt.Sprintf("they arrive at %s of %s with the source address %s, which is not that of the sender's "+
			"Node: something between the nodes translates it, or the sender's address differs from its Node's", t.ArrivedBy, name, t.Source)
	case t.Filtered != "":
		return CauseRoute, fmt.Sprintf("they arrive at %s of %s, whose kernel does not forward them: %s", t.ArrivedBy, name, t.Filtered)
	}
	if badChecksums(t) {
		return CauseChecksum, fmt.Sprintf("they arrive at %s of %s with wrong UDP checksums, so kernels drop them: the sender's NIC "+
			"computes them wrongly, or something between the nodes changes the packets", t.ArrivedBy, name)
	}
	return CauseDropped, fmt.Sprintf("they arrive at %s of %s, whose firewall, kernel or Open vSwitch drops them", t.ArrivedBy, name)
}

// tapSeen is a tap of packets to and from the node peer, in words.
func tapSeen(t api.ReachTap, peer string) (out []string) {
	if t.Began.IsZero() {
		return nil
	}
	count := func(n, full int, by string) string {
		if n == 0 {
			return "none"
		}
		return fmt.Sprintf("%d through %s (%d full-size)", n, by, full)
	}
	out = append(out, fmt.Sprintf("of %d packets to node %s, left: %s; arrived from there: %s", t.Sent, peer,
		count(t.Left, t.LeftFull, t.LeftBy), count(t.Arrived, t.ArrivedFull, t.ArrivedBy)))
	if t.Arrived > 0 && t.ArrivedSums == api.ChecksumsWrong {
		out = append(out, "the checksums of those that arrived are wrong")
	}
	if t.Left > 0 && t.LeftSums == api.ChecksumsOffloaded {
		out = append(out, fmt.Sprintf("the checksums of those that left are left to %s, %s", t.LeftBy, driver(t)))
	}
	if t.Unheld != "" {
		out = append(out, fmt.Sprintf("no interface has %s, the address of its Node", t.Unheld))
	}
	return out
}

// driver names the driver of the interface through which packets leave.
func driver(t api.ReachTap) string {
	if t.Driver == "" {
		return "whose driver is not known"
	}
	return "driver " + t.Driver
}

// checksumFault is where checksums that are wrong on arrival become wrong, according to the sender's tap: a node, or
// else between the nodes.
func checksumFault(sender string, t api.ReachTap) (at, text string) {
	switch {
	case t.LeftSums == api.ChecksumsOffloaded && !t.Inside:
		return sender, fmt.Sprintf("node %s leaves them to %s, %s, which computes them wrongly", sender, t.LeftBy, driver(t))
	case t.LeftSums == api.ChecksumsWrong:
		return sender, fmt.Sprintf("they are already wrong where they leave node %s, through %s", sender, t.LeftBy)
	case t.LeftSums == api.ChecksumsRight && !t.Inside:
		return "", fmt.Sprintf("they are right where they leave node %s through %s: something between the nodes changes the packets", sender, t.LeftBy)
	}
	return "", fmt.Sprintf("the NIC of node %s computes them wrongly, or something between the nodes changes the packets", sender)
}
