package reach

import (
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
)

// Answer is what became of a question.
type Answer string

const (
	NotAsked  Answer = ""
	Answered  Answer = "answered"
	NotHeard  Answer = "no answer"
	CannotAsk Answer = "could not be asked"
)

// Evidence is what is known about the path to and from a peer.
type Evidence struct {
	// Node is the peer, Family its end's, "IPv4" or "IPv6".
	Node, Family string
	State        State
	// Counts are of all nodes that are asked.
	Counts
	// NotReady: the API server has the peer's Node as not ready.
	NotReady bool
	// Settled: the peer's agent should run, because it was heard, or because its node has answered for a while (Grace).
	// Quiet: nothing was heard for so long that it is told, though the peer does not say that it does not hear this one.
	// Lasting: nothing was heard for so long that a node which is down is known to be: the API server says so.
	// Long: nothing was heard for as long as a node has to start its agent, which may have been down unseen.
	Settled, Quiet, Lasting, Long bool
	// Runs names who hears the peer now: its agent runs, and nothing is waited for (Word). Empty: nobody, as far as known.
	Runs string
	// Tunnel is what carries the path's packets, "udp port 6081"; empty: they are routed.
	Tunnel string
	// NoTunnel is why the tunnel of this node cannot work; empty: nothing is known against it.
	NoTunnel string
	// Echo and FullEcho are pings between the nodes' own addresses: small, and of the size that a full packet of pods has
	// on the underlay, which is UnderlaySize bytes.
	Echo, FullEcho Answer
	UnderlaySize   int
	// EndEcho is a ping from this node's end to the peer's, the way that pods' packets go, and GatewayEcho one to the
	// gateway of the peer's pods where that is not answered: each node has one, whether it probes or not.
	EndEcho, GatewayEcho Answer
	// NoCarrier is the interface of this node to the others, if it has no carrier.
	NoCarrier string
	// NoGateway are this node's default gateways by that interface, "192.168.0.1 or fe80::1", if none answers ARP or
	// neighbour discovery.
	NoGateway string
	// DropsIn and DropsOut are what certainly drops the tunnel's packets from the peer and to it on this node; empty:
	// nothing that could be found.
	DropsIn, DropsOut string
	// Tap is what was seen of the path's packets on this node's interfaces since it is in this State.
	Tap api.ReachTap
}

// PodsPass reports whether a ping that pods could send was answered: pods' packets pass in both directions.
func (e Evidence) PodsPass() bool { return e.EndEcho == Answered || e.GatewayEcho == Answered }

// answers says what has answered a ping that pods could send.
func (e Evidence) answers() string {
	if e.EndEcho == Answered {
		return "the address that it is asked at answers"
	}
	return "the gateway of its pods answers. It may not probe"
}

// Counts are of the nodes that are asked, without those that are down as the API server says.
type Counts struct {
	// Peers is how many there are, Heard how many of them are heard, Pinged of how many the own address answers, and
	// Silent of how many it has been asked and does not.
	Peers, Heard, Pinged, Silent int
}

// Grace is for how many intervals a node's own address must have answered until its agent should run. Where nothing
// shows that the agent runs, a path must be silent for as long until it is told: a node may restart faster than it is
// seen to be down. Quiet is after how many a silent path is told on which packets arrive, or whose peer others hear:
// Open vSwitch that restarts is silent, too. Lasting is after how many a node is told of which nothing at all is heard
// by any: one that is down is not ready by then.
const Grace, Quiet, Lasting = 60, 15, 30

// Cause is why a path does not work.
type Cause string

const (
	// CauseNone: it works, or too little is known yet.
	CauseNone Cause = ""
	// CauseAgentAway and CauseNodeAway are no faults of the path.
	CauseAgentAway Cause = "agent-away"
	CauseNodeAway  Cause = "node-away"
	CauseAlone     Cause = "cut-off"
	CauseBlocked   Cause = "blocked"
	CauseUnderlay  Cause = "underlay"
	CauseNoTunnel  Cause = "no-tunnel"
	CauseFirewall  Cause = "firewall"
	// CauseTunnelDiffers is known only to both ends together.
	CauseTunnelDiffers Cause = "tunnel-differs"
	// CauseDropped: a node drops them, between its interfaces and its pods. CauseBetween is known only to both ends
	// together: they leave the one and do not arrive at the other.
	CauseDropped  Cause = "dropped"
	CauseBetween  Cause = "between"
	CauseSource   Cause = "source"
	CauseRoute    Cause = "route"
	CauseAddress  Cause = "address"
	CauseChecksum Cause = "checksum"
	CauseMTU      Cause = "mtu"
	CauseLossy    Cause = "lossy"
	// CauseTCP: no connection is answered, though packets of UDP pass. CauseSegments: it is, and what is sent over it does
	// not arrive, or only piece by piece.
	CauseTCP      Cause = "tcp"
	CauseSegments Cause = "segments"
	// CauseMultipath: of several ways that packets take, by their ports, one drops all.
	CauseMultipath Cause = "multipath"
	CauseNotFound  Cause = "not-found"
)

// Silent reports whether the cause says that nothing at all is heard of the peer.
func (c Cause) Silent() bool { return c == CauseUnderlay || c == CauseAlone || c == CauseBlocked }

// Verdict is what the evidence says.
type Verdict struct {
	Cause Cause
	// Broken: a fault of the path, to be told. An agent or a node that is away is none.
	Broken bool
	// Text is a sentence that names the direction; Seen is the evidence, a clause each.
	Text string
	Seen []string
}

// How says what a broken path does: it passes nothing in a direction ("broken"), nothing of full size ("narrow"), or
// loses some ("lossy"). Of one that is well again and is told for a while the cause says it.
func (s State) How(c Cause) string {
	either := func(d Direction) bool { return s.From == d || s.To == d }
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

// Judge says what is wrong with a path, in the order from certain to unknown. It names a cause only where the evidence
// leaves no other.
func Judge(e Evidence) Verdict {
	s := e.State
	v := Verdict{Seen: e.seen()}
	certain, why := e.certain()
	switch {
	case s.Away:
		v.Cause, v.Text = CauseAgentAway, fmt.Sprintf("the agent of node %s does not answer; its node does", e.Node)
	case s.From == Fails && s.To == Unknown && e.PodsPass() && !spoiled(e.Tap): // ping has its checksum from the kernel
		v.Cause, v.Text = CauseAgentAway, fmt.Sprintf("the agent of node %s is not heard; %s", e.Node, e.answers())
	case !s.Doubtful() || e.Echo == NotAsked: // the evidence is complete or it is none
		return Verdict{}
	case certain != CauseNone:
		v.Cause, v.Broken, v.Text = certain, true, e.broken()+": "+why
	case s.From == Fails && s.To == Unknown:
		return e.unheard(v)
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
	v.Cause, v.Broken, v.Text = CauseLossy, true, e.broken()+": what drops them was not found out"
	if s := e.State; (s.From != Lossy || s.BadFrom > 0) && (s.To != Lossy || s.BadTo > 0) {
		v.Cause, v.Text = CauseMultipath, e.broken()+": "+multipath(max(s.BadFrom, s.BadTo))
	}
	return v
}

// multipath is what a trial has shown.
func multipath(bad uint8) string {
	return fmt.Sprintf("from %d of %d source ports all are, and from the others none: packets take several ways, by their ports, and one of "+
		"the ways drops them, such as a member of a bond or a next hop of ECMP", bad, tryPorts)
}

// mayBlock is what may drop the packets of all peers.
func (e Evidence) mayBlock() string {
	if e.Tunnel == "" {
		return "packets with pods' addresses may be dropped between the nodes, or on this one"
	}
	return e.Tunnel + " may be blocked between the nodes, or on this one, or this node's tunnel is of another type or port than theirs"
}

// unheard is about a peer of which nothing comes.
func (e Evidence) unheard(v Verdict) Verdict {
	switch {
	case e.Settled && e.blocked():
		v.Cause, v.Broken = CauseBlocked, true
		v.Text = fmt.Sprintf("no packet comes from pods of the %d other nodes that this one asks, though nodes answer ping: %s",
			e.Peers, e.mayBlock())
	case e.Echo == Answered && e.NotReady: // as one that has just been created, or restarted
		v.Cause = CauseNodeAway
		v.Text = fmt.Sprintf("node %s is not ready: its agent may not run", e.Node)
	case e.Echo == NotHeard:
		return e.nothing(v)
	case e.Echo == CannotAsk && e.mayBeDown():
		return Verdict{} // it may be down
	case e.mayStart():
		return Verdict{}
	default:
		v.Cause, v.Broken, v.Text = CauseNotFound, true, e.broken()+": what drops the packets was not found out"
	}
	return v
}

// nothing is about a peer of which nothing comes, and whose node's own address does not answer either.
func (e Evidence) nothing(v Verdict) Verdict {
	switch {
	case e.unplugged():
		v.Cause, v.Broken = CauseAlone, true
		v.Text = fmt.Sprintf("this node reaches no other node: %s has no carrier: its cable, the switch port, or the NIC", e.NoCarrier)
	case e.alone():
		v.Cause, v.Broken = CauseAlone, true
		v.Text = fmt.Sprintf("this node reaches no other node that it asks, and its default gateway %s does not answer either: it is cut "+
			"off, by itself or by the underlay next to it", e.NoGateway)
	case e.mayBeDown():
		v.Cause = CauseNodeAway
		v.Text = fmt.Sprintf("node %s answers nothing at all: it is down, or the underlay between is", e.Node)
	case e.cutOff():
		v.Cause, v.Broken = CauseAlone, true
		v.Text = fmt.Sprintf("this node reaches none of the %d other nodes that it asks, neither their pods nor their own "+
			"addresses: it is cut off, by itself or by the underlay next to it", e.Peers)
	case e.Runs != "":
		v.Cause, v.Broken = CauseUnderlay, true
		v.Text = fmt.Sprintf("node %s answers nothing at all here, neither its pods nor its own address, though %s hears it: the underlay "+
			"between the two nodes passes neither pods' packets nor ping, in one direction or both", e.Node, e.Runs)
	default:
		v.Cause, v.Broken = CauseUnderlay, true
		v.Text = fmt.Sprintf("node %s answers nothing at all, neither its pods nor its own address, and its Node is not said to be "+
			"down: the underlay between the nodes passes neither pods' packets nor ping, in one direction or both, or node %s is cut "+
			"off, has no route back, or that is not its address", e.Node, e.Node)
	}
	return v
}

// beyond is what is known of packets to the peer that are dropped elsewhere.
func (e Evidence) beyond() string {
	if e.State.To == Fails && leaves(e.Tap, false) {
		return fmt.Sprintf("they leave this node by %s; whether they arrive there, node %s knows", e.Tap.LeftBy, e.Node)
	}
	return "what drops the packets was not found out"
}

// mayBeDown reports whether a node of which nothing at all is heard may be down, for all that is known.
func (e Evidence) mayBeDown() bool {
	return e.NotReady || !e.Lasting && (e.Runs == "" || !e.Quiet) && !e.suddenly()
}

// mayStart reports whether the other node's agent may not run yet, nor its Open vSwitch have what its end needs.
func (e Evidence) mayStart() bool {
	runs := e.Runs != "" || e.Settled && (e.Long || e.Tap.Arrived > 0)
	return !e.Quiet || !runs
}

// dropped is what drops packets in a direction that fails.
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
	if e.Echo == Answered && e.FullEcho == NotHeard && e.State.From != Fails && e.State.To != Fails {
		return CauseNone, "" // the MTU, which a tunnel's device may have learnt
	}
	silent := e.State.From == Fails && (e.State.To != Unknown || e.Quiet)
	if silent || e.State.From == Narrow {
		if c, why = lost("this node", e.Tap, e.State.From == Narrow); c != CauseNone {
			return c, why
		}
	}
	if e.State.To == Fails || e.State.To == Narrow {
		c, why = held("this node", e.Tap, e.State.To == Narrow, e.Echo)
	}
	return c, why
}

// blocked reports whether of several nodes none is heard, though this one's own address answers. Where the packets are
// dropped is not known: each node sees the same if it is between all of them.
func (e Evidence) blocked() bool { return e.Heard == 0 && e.Peers >= 2 && e.Echo == Answered }

// cutOff reports whether nothing at all is heard of several nodes. Two may be down at once, as when both restart.
func (e Evidence) cutOff() bool { return e.Heard == 0 && e.Pinged == 0 && e.Peers >= 3 }

// unplugged reports whether this node's own interface is why nothing is heard.
func (e Evidence) unplugged() bool { return e.NoCarrier != "" && e.Heard == 0 && e.Pinged == 0 }

// alone reports whether nothing at all is heard, not even of a router, which is not down with the other nodes. Of one
// that is not ready nothing else is to be expected.
func (e Evidence) alone() bool {
	return e.NoGateway != "" && e.Heard == 0 && e.Pinged == 0 && !e.NotReady
}

// suddenly reports whether all others, which were heard, answer nothing any more, as far as they have been asked: so
// many are not down at once.
func (e Evidence) suddenly() bool {
	return e.cutOff() && e.Silent >= 5 && 2*e.Silent > e.Peers && e.State.EverHeard
}

// narrow is about paths that only packets below the pods' MTU pass. Where full-size packets pass the underlay, or
// nobody knows, something else may drop them.
func (e Evidence) narrow(v Verdict) Verdict {
	v.Cause, v.Broken = CauseNotFound, true
	v.Text = e.broken() + ": small packets pass; what drops the others was not found out"
	if e.FullEcho == NotHeard && e.Echo == Answered {
		v.Cause = CauseMTU
		v.Text = e.broken() + fmt.Sprintf(": small packets pass, and the underlay between the nodes does not pass packets of %d bytes either: its MTU is smaller "+
			"somewhere on the way", e.UnderlaySize)
	}
	return v
}

// broken names the direction, or both.
func (e Evidence) broken() string {
	in := fmt.Sprintf("pods of node %s to pods here", e.Node)
	out := fmt.Sprintf("pods here to pods of node %s", e.Node)
	var lost, narrow, lossy, tcp []string
	for _, d := range []struct {
		is    Direction
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
		parts = append(parts, "no "+e.Family+" packet comes from "+strings.Join(lost, ", nor from "))
	}
	if len(narrow) > 0 {
		parts = append(parts, "no full-size "+e.Family+" packet comes from "+strings.Join(narrow, ", nor from "))
	}
	if len(lossy) > 0 {
		parts = append(parts, e.Family+" packets from "+strings.Join(lossy, ", and from "))
	}
	if len(tcp) > 0 {
		parts = append(parts, "no "+e.Family+" transfer by TCP passes from "+strings.Join(tcp, ", nor from "))
	}
	text := strings.Join(parts, "; ")
	if e.State.From == Fails && e.State.To == Unknown {
		text += fmt.Sprintf(" (whether they come in the other direction, node %s knows)", e.Node)
	}
	return text
}

// seen is the evidence in words.
func (e Evidence) seen() (out []string) {
	s := e.State
	switch {
	case s.From == Fails && !s.EverHeard:
		out = append(out, fmt.Sprintf("nothing was heard of node %s since the agent here started: it may not probe (reachability in its "+
			"agent's config), or have no free address for it", e.Node))
	case s.From == Fails:
		out = append(out, fmt.Sprintf("node %s was heard before", e.Node))
	case s.To == Fails:
		out = append(out, fmt.Sprintf("node %s is heard, and says that it does not hear this one", e.Node))
	}
	if s.To == NoTCP {
		out = append(out, s.transferSeen())
	}
	if s.From == Fails && e.Runs != "" {
		out = append(out, fmt.Sprintf("the agent of node %s runs: %s hears it", e.Node, e.Runs))
	}
	if e.Echo != NotAsked {
		out = append(out, fmt.Sprintf("ping of its node's address: %s", e.Echo))
	}
	if e.FullEcho != NotAsked {
		out = append(out, fmt.Sprintf("ping with %d bytes: %s", e.UnderlaySize, e.FullEcho))
	}
	if lost := s.LostFrom + s.LostTo; lost > 0 {
		out = append(out, fmt.Sprintf("of 32 packets %d were lost from there, %d to there", s.LostFrom, s.LostTo))
	}
	return append(out, tapSeen(e.Tap, e.Node)...)
}
