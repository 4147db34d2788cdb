package reach

import (
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
)

// Answer is the outcome of a ping.
type Answer string

const (
	NotPinged  Answer = ""
	Answered   Answer = "answered"
	NoReply    Answer = "no answer"
	CannotPing Answer = "could not be asked"
)

// Evidence is what is known about the path to and from a peer.
type Evidence struct {
	// Node is the peer, Family its end's, "IPv4" or "IPv6".
	Node, Family string
	State        State
	// Counts are about all nodes that are asked.
	Counts
	// NotReady: the API server has the peer's Node as not ready.
	NotReady bool
	// Settled: the peer's agent should run, because it was heard, or because its node has answered for a while (Grace).
	// Quiet: the silence is long enough to be reported, though the peer does not report that it does not hear this node.
	// Lasting: the silence is long enough for the API server to report a node that is down.
	// Long: the silence is as long as a node may take to start its agent after an outage that was not seen.
	Settled, Quiet, Lasting, Long bool
	// Runs names a node that hears the peer now: its agent runs, so there is no need to wait (Reports). Empty: none known.
	Runs string
	// Tunnel is what carries the path's packets, "udp port 6081"; empty: they are routed.
	Tunnel string
	// NoTunnel is why this node's tunnel cannot work; empty: no reason is known.
	NoTunnel string
	// Echo and FullEcho are pings between the nodes' own addresses: small, and of the size that a pods' full packet has
	// on the underlay, which is UnderlaySize bytes.
	Echo, FullEcho Answer
	UnderlaySize   int
	// EndEcho is a ping from this node's end to the peer's, along the path of pods' packets, and GatewayEcho one to the
	// gateway of the peer's pods if that is not answered: each node has a gateway, whether it probes or not.
	EndEcho, GatewayEcho Answer
	// NoCarrier is the interface of this node to the others, if it has no carrier.
	NoCarrier string
	// NoGateway are this node's default gateways by that interface, "192.168.0.1 or fe80::1", if none answers ARP or
	// neighbour discovery.
	NoGateway string
	// DropsIn and DropsOut are what certainly drops the tunnel's packets from and to the peer on this node; empty: none
	// was found.
	DropsIn, DropsOut string
	// Tap is what was seen of the path's packets on this node's interfaces since it entered this State.
	Tap api.ReachTap
}

// PodsPass reports whether a ping that pods could send was answered: pods' packets pass in both directions.
func (e Evidence) PodsPass() bool { return e.EndEcho == Answered || e.GatewayEcho == Answered }

// answers names the address that has answered a ping that pods could send.
func (e Evidence) answers() string {
	if e.EndEcho == Answered {
		return "the address at which it is probed answers"
	}
	return "the gateway of its pods answers. It may not probe"
}

// Counts are about the nodes that are asked, without those that are down according to the API server.
type Counts struct {
	// Peers is how many there are, Heard how many of them are heard, Pinged how many answer at their own address, and
	// Silent how many were pinged there and do not answer.
	Peers, Heard, Pinged, Silent int
}

// Grace is for how many intervals a node's own address must have answered until its agent should run. If nothing shows
// that the agent runs, a path must be silent for as long before it is reported: a node may restart faster than it is
// seen to be down. Quiet is the number of intervals after which a silent path is reported if packets arrive on it, or
// other nodes hear the peer: a restart of Open vSwitch is silent, too. Lasting is the number after which a node is
// reported that no node hears at all: a node that is down is not ready by then.
const Grace, Quiet, Lasting = 60, 15, 30

// Cause is why a path does not work.
type Cause string

const (
	// CauseNone: it works, or too little is known yet.
	CauseNone Cause = ""
	// CauseAgentAway and CauseNodeAway are not faults of the path.
	CauseAgentAway Cause = "agent-away"
	CauseNodeAway  Cause = "node-away"
	CauseAlone     Cause = "cut-off"
	CauseBlocked   Cause = "blocked"
	CauseUnderlay  Cause = "underlay"
	CauseNoTunnel  Cause = "no-tunnel"
	CauseFirewall  Cause = "firewall"
	// CauseTunnelDiffers is known only from both ends together.
	CauseTunnelDiffers Cause = "tunnel-differs"
	// CauseDropped: a node drops packets, between its interfaces and its pods. CauseBetween is known only from both ends
	// together: packets leave one end and do not arrive at the other.
	CauseDropped  Cause = "dropped"
	CauseBetween  Cause = "between"
	CauseSource   Cause = "source"
	CauseRoute    Cause = "route"
	CauseAddress  Cause = "address"
	CauseChecksum Cause = "checksum"
	CauseMTU      Cause = "mtu"
	CauseLossy    Cause = "lossy"
	// CauseTCP: no connection is answered, though UDP packets pass. CauseSegments: connections are answered, and what is
	// sent over them does not arrive, or only piece by piece.
	CauseTCP      Cause = "tcp"
	CauseSegments Cause = "segments"
	// CauseMultipath: of several paths, selected by port, one drops everything.
	CauseMultipath Cause = "multipath"
	CauseNotFound  Cause = "not-found"
)

// Silent reports whether the cause means that nothing at all is heard from the peer.
func (c Cause) Silent() bool { return c == CauseUnderlay || c == CauseAlone || c == CauseBlocked }

// Verdict is what the evidence says.
type Verdict struct {
	Cause Cause
	// Broken: a fault of the path, to be reported. An agent or a node that is away is not one.
	Broken bool
	// Text is a sentence that names the direction; Seen is the evidence, a clause each.
	Text string
	Seen []string
}

// How says what a broken path does: it passes nothing in a direction ("broken"), nothing of full size ("narrow"), or
// loses some ("lossy"). For a path that works again but is still reported for a while, the cause decides.
func (s State) How(c Cause) string {
	either := func(d DirectionState) bool { return s.From == d || s.To == d }
	switch {
	case either(Fails):
		return "broken"
	case either(Narrow) || c == CauseMTU:
		return "narrow"
	case either(Lossy) || c == CauseLossy || c == CauseMultipath:
		return "lossy"
	}
	return "broken"
}

// Judge says what is wrong with a path, trying causes from certain to unknown. It names a cause only if the evidence
// leaves no other.
func Judge(e Evidence) Verdict {
	s := e.State
	v := Verdict{Seen: e.seen()}
	certain, why := e.certain()
	switch {
	case s.Away:
		v.Cause, v.Text = CauseAgentAway, fmt.Sprintf("the agent of node %s does not answer; its node does", e.Node)
	case s.From == Fails && s.To == Unknown && e.PodsPass() && !badChecksums(e.Tap): // of a ping the kernel computes it
		v.Cause, v.Text = CauseAgentAway, fmt.Sprintf("the agent of node %s is not heard; %s", e.Node, e.answers())
	case !s.Doubtful() || e.Echo == NotPinged: // incomplete evidence is none
		return Verdict{}
	case certain != CauseNone:
		v.Cause, v.Broken, v.Text = certain, true, e.broken()+": "+why
	case s.From == Fails && s.To == Unknown:
		return e.noPackets(v)
	case s.From == Fails || s.To == Fails:
		v.Cause, v.Broken, v.Text = CauseNotFound, true, e.broken()+": "+e.beyond()
	default:
		return e.partly(v)
	}
	return v
}

// partly is about packets of which some pass in both directions.
func (e Evidence) partly(v Verdict) Verdict {
	switch s := e.State; {
	case s.From == Lossy || s.To == Lossy:
		return e.lossy(v)
	case s.To == NoTCP && s.From == Works:
		return e.noTCP(v)
	}
	return e.narrow(v)
}

// lossy is about packets some of which are lost.
func (e Evidence) lossy(v Verdict) Verdict {
	v.Cause, v.Broken, v.Text = CauseLossy, true, e.broken()+": what drops them could not be determined"
	if s := e.State; (s.From != Lossy || s.BadFrom > 0) && (s.To != Lossy || s.BadTo > 0) {
		v.Cause, v.Text = CauseMultipath, e.broken()+": "+multipath(max(s.BadFrom, s.BadTo))
	}
	return v
}

// multipath is what a trial has shown.
func multipath(bad uint8) string {
	return fmt.Sprintf("all from %d of %d source ports, and none from the others: packets take several paths, selected by port, and one of "+
		"the paths drops them, such as a member of a bond or an ECMP next hop", bad, trialPorts)
}

// mayBlock is what may drop the packets of all peers.
func (e Evidence) mayBlock() string {
	if e.Tunnel == "" {
		return "packets with pods' addresses may be dropped between the nodes, or on this one"
	}
	return e.Tunnel + " may be blocked between the nodes, or on this one, or this node's tunnel has another type or port than theirs"
}

// noPackets is about a peer that is not heard.
func (e Evidence) noPackets(v Verdict) Verdict {
	switch {
	case e.Settled && e.blocked():
		v.Cause, v.Broken = CauseBlocked, true
		v.Text = fmt.Sprintf("no packets arrive from pods on the %d other nodes that this one probes, although nodes answer ping: %s",
			e.Peers, e.mayBlock())
	case e.Echo == Answered && e.NotReady: // it may have just been created or restarted
		v.Cause = CauseNodeAway
		v.Text = fmt.Sprintf("node %s is not ready: its agent may not be running", e.Node)
	case e.Echo == NoReply:
		return e.noResponse(v)
	case e.Echo == CannotPing && e.mayBeDown():
		return Verdict{} // it may be down
	case e.mayStart():
		return Verdict{}
	default:
		v.Cause, v.Broken, v.Text = CauseNotFound, true, e.broken()+": what drops the packets could not be determined"
	}
	return v
}

// noResponse is about a peer that is not heard, and whose node's own address does not answer either.
func (e Evidence) noResponse(v Verdict) Verdict {
	switch {
	case e.unplugged():
		v.Cause, v.Broken = CauseAlone, true
		v.Text = fmt.Sprintf("this node reaches no other node: %s has no carrier (cable, switch port or NIC)", e.NoCarrier)
	case e.alone():
		v.Cause, v.Broken = CauseAlone, true
		v.Text = fmt.Sprintf("this node reaches no other node that it probes, and its default gateway %s does not answer either: it is cut "+
			"off, by its own fault or by the underlay next to it", e.NoGateway)
	case e.mayBeDown():
		v.Cause = CauseNodeAway
		v.Text = fmt.Sprintf("node %s does not answer at all: it is down, or the underlay between the nodes is", e.Node)
	case e.cutOff():
		v.Cause, v.Broken = CauseAlone, true
		v.Text = fmt.Sprintf("this node reaches none of the %d other nodes that it probes, neither their pods nor their own "+
			"addresses: it is cut off, by its own fault or by the underlay next to it", e.Peers)
	case e.Runs != "":
		v.Cause, v.Broken = CauseUnderlay, true
		v.Text = fmt.Sprintf("node %s does not answer this node at all, neither its pods nor its own address, although %s hears it: the underlay "+
			"between the two nodes passes neither pods' packets nor ping, in one direction or both", e.Node, e.Runs)
	default:
		v.Cause, v.Broken = CauseUnderlay, true
		v.Text = fmt.Sprintf("node %s does not answer at all, neither its pods nor its own address, and its Node is not reported to be "+
			"down: the underlay between the nodes passes neither pods' packets nor ping, in one direction or both, or node %s is cut "+
			"off, has no route back, or has another address", e.Node, e.Node)
	}
	return v
}

// beyond is what is known about packets to the peer that are not dropped here.
func (e Evidence) beyond() string {
	if e.State.To == Fails && leaves(e.Tap, false) {
		return fmt.Sprintf("they leave this node through %s; whether they arrive is known only on node %s", e.Tap.LeftBy, e.Node)
	}
	return "what drops the packets could not be determined"
}

// mayBeDown reports whether a node that does not answer at all may be down, for all that is known.
func (e Evidence) mayBeDown() bool {
	return e.NotReady || !e.Lasting && (e.Runs == "" || !e.Quiet) && !e.suddenly()
}

// mayStart reports whether the peer's agent may not run yet, or its Open vSwitch may lack what its end needs.
func (e Evidence) mayStart() bool {
	runs := e.Runs != "" || e.Settled && (e.Long || e.Tap.Arrived > 0)
	return !e.Quiet || !runs
}

// dropped is what drops packets on this node in a direction that fails.
func (e Evidence) dropped() string {
	if e.State.From == Fails && e.DropsIn != "" {
		return e.DropsIn
	}
	if e.State.To == Fails {
		return e.DropsOut
	}
	return ""
}

// certain is a cause that this node alone knows for certain.
func (e Evidence) certain() (c Cause, why string) {
	switch {
	case e.NoTunnel != "":
		return CauseNoTunnel, e.NoTunnel
	case e.dropped() != "":
		return CauseFirewall, "this node drops the tunnel's packets, " + e.dropped()
	}
	if e.Echo == Answered && e.FullEcho == NoReply && e.State.From != Fails && e.State.To != Fails {
		return CauseNone, "" // the MTU, which a tunnel device may have learnt
	}
	silent := e.State.From == Fails && (e.State.To != Unknown || e.Quiet)
	if silent || e.State.From == Narrow {
		if c, why = inboundFault("this node", e.Tap, e.State.From == Narrow); c != CauseNone {
			return c, why
		}
	}
	if e.State.To == Fails || e.State.To == Narrow {
		c, why = outboundFault("this node", e.Tap, e.State.To == Narrow, e.Echo)
	}
	return c, why
}

// blocked reports whether none of several nodes is heard, though the peer's own address answers. Where the packets are
// dropped is not known: if it is between all of them, each node sees the same.
func (e Evidence) blocked() bool { return e.Heard == 0 && e.Peers >= 2 && e.Echo == Answered }

// cutOff reports whether several nodes do not answer at all. Two may be down at once, for example if both restart.
func (e Evidence) cutOff() bool { return e.Heard == 0 && e.Pinged == 0 && e.Peers >= 3 }

// unplugged reports whether nothing is heard because of this node's own interface.
func (e Evidence) unplugged() bool { return e.NoCarrier != "" && e.Heard == 0 && e.Pinged == 0 }

// alone reports whether nothing at all is heard, not even from a router, which does not go down with the other nodes. A
// peer that is not ready is expected not to answer.
func (e Evidence) alone() bool {
	return e.NoGateway != "" && e.Heard == 0 && e.Pinged == 0 && !e.NotReady
}

// suddenly reports whether all others, which were heard before, have stopped answering, as far as they were pinged: so
// many are not down at once.
func (e Evidence) suddenly() bool {
	return e.cutOff() && e.Silent >= 5 && 2*e.Silent > e.Peers && e.State.EverHeard
}

// narrow is about paths that only packets below the pods' MTU pass. If full-size packets pass the underlay, or that is
// not known, something else may drop them.
func (e Evidence) narrow(v Verdict) Verdict {
	v.Cause, v.Broken = CauseNotFound, true
	v.Text = e.broken() + ": small packets pass; what drops the others could not be determined"
	if e.FullEcho == NoReply && e.Echo == Answered {
		v.Cause = CauseMTU
		v.Text = e.broken() + fmt.Sprintf(": small packets pass, and the underlay between the nodes does not pass packets of %d bytes either: its MTU is smaller "+
			"somewhere on the path", e.UnderlaySize)
	}
	return v
}

// broken names the direction, or both.
func (e Evidence) broken() string {
	in := fmt.Sprintf("pods on node %s to pods on this node", e.Node)
	out := fmt.Sprintf("pods on this node to pods on node %s", e.Node)
	var lost, narrow, lossy, tcp []string
	for _, d := range []struct {
		is    DirectionState
		name  string
		share int
	}{{e.State.From, in, e.State.LostFrom}, {e.State.To, out, e.State.LostTo}} {
		switch d.is {
		case Fails:
			lost = append(lost, d.name)
		case Narrow:
			narrow = append(narrow, d.name)
		case NoTCP:
			tcp = append(tcp, d.name)
		case Lossy:
			lossy = append(lossy, fmt.Sprintf("%s are lost (%d of the last %d)", d.name, d.share, window))
		}
	}
	var parts []string
	if len(lost) > 0 {
		parts = append(parts, "no "+e.Family+" packets pass from "+strings.Join(lost, ", nor from "))
	}
	if len(narrow) > 0 {
		parts = append(parts, "no full-size "+e.Family+" packets pass from "+strings.Join(narrow, ", nor from "))
	}
	if len(lossy) > 0 {
		parts = append(parts, e.Family+" packets from "+strings.Join(lossy, ", and from "))
	}
	if len(tcp) > 0 {
		parts = append(parts, "no "+e.Family+" TCP transfers succeed from "+strings.Join(tcp, ", nor from "))
	}
	text := strings.Join(parts, "; ")
	if e.State.From == Fails && e.State.To == Unknown {
		text += fmt.Sprintf(" (whether they pass in the other direction is known only on node %s)", e.Node)
	}
	return text
}

// seen is the evidence in words.
func (e Evidence) seen() (out []string) {
	s := e.State
	switch {
	case s.From == Fails && !s.EverHeard:
		out = append(out, fmt.Sprintf("nothing was heard from node %s since this node's agent started: it may not probe (reachability in its "+
			"agent's config), or have no free address for its end", e.Node))
	case s.From == Fails:
		out = append(out, fmt.Sprintf("node %s was heard before", e.Node))
	case s.To == Fails:
		out = append(out, fmt.Sprintf("node %s is heard, and reports that it does not hear this node", e.Node))
	}
	if s.To == NoTCP {
		out = append(out, s.transferSeen())
	}
	if s.From == Fails && e.Runs != "" {
		out = append(out, fmt.Sprintf("the agent of node %s runs: %s hears it", e.Node, e.Runs))
	}
	if e.Echo != NotPinged {
		out = append(out, fmt.Sprintf("ping of its node's address: %s", e.Echo))
	}
	if e.FullEcho != NotPinged {
		out = append(out, fmt.Sprintf("ping with %d bytes: %s", e.UnderlaySize, e.FullEcho))
	}
	if lost := s.LostFrom + s.LostTo; lost > 0 {
		out = append(out, fmt.Sprintf("of 32 packets in each direction, %d were lost from there and %d to there", s.LostFrom, s.LostTo))
	}
	return append(out, tapSeen(e.Tap, e.Node)...)
}
