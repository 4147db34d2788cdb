package reach

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/api"
)

// CauseNotProbed: an agent does not probe, or these two nodes are not probed by each other.
const CauseNotProbed Cause = "not-probed"

// IdleByConfig is why an agent that is configured not to probe probes no node.
const IdleByConfig = "reachability is none in its agent's config"

// Side is one end of a pair of nodes, with what its agent reports about the other.
type Side struct {
	Node string
	// NotQueried is why its agent was not queried; empty: it was. Down: because it does not answer on its own node.
	NotQueried string
	Down       bool
	// Idle is why it probes no node; empty: it does.
	Idle string
	// Paths are those to the other end, one per family.
	Paths []api.ReachPath
}

// Direction is one direction between two nodes in one family, as known from both ends.
type Direction struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Family string `json:"family,omitempty"`
	// Is what is known about it, and Since when; zero: that is not known.
	Is    DirectionState `json:"state"`
	Since time.Time      `json:"since,omitzero"`
	// Cause is why it does not work or is not known, At the node that has the fault; empty: it is between them, or its
	// place is not known.
	Cause Cause  `json:"cause,omitempty"`
	At    string `json:"at,omitempty"`
	// Text is a sentence, and Seen the evidence, each with the node that has seen it.
	Text string   `json:"text"`
	Seen []string `json:"seen,omitempty"`
}

// Bad reports whether the direction does not work as it should.
func (w Direction) Bad() bool { return w.Is.bad() }

// Join combines what both ends report, as two directions for each family. What the receiver reports takes precedence
// over what it has reported to the sender, and silence counts only if the sender's agent sends. A cause is named if one
// end's evidence is about that direction.
func Join(a, b Side) []Direction {
	families := map[string]bool{}
	for _, p := range slices.Concat(a.Paths, b.Paths) {
		families[p.Family] = true
	}
	var out []Direction
	for _, f := range []string{"IPv4", "IPv6"} {
		if families[f] {
			out = append(out, join(a, b, f), join(b, a, f))
		}
	}
	if len(out) == 0 {
		out = append(out, join(a, b, ""), join(b, a, ""))
	}
	return out
}

// oneWay is one direction in one family: the sender x with its path to y, and the receiver y with its path to x.
type oneWay struct {
	x, y     Side
	px, py   api.ReachPath
	hasX     bool // x has a path to y: it sends
	hasY     bool
	backFail bool // the other direction fails, too
}

func (s Side) path(family string) (api.ReachPath, bool) {
	i := slices.IndexFunc(s.Paths, func(p api.ReachPath) bool { return p.Family == family })
	if i < 0 {
		return api.ReachPath{}, false
	}
	return s.Paths[i], true
}

func pairOf(x, y Side, family string) (p oneWay) {
	p.x, p.y = x, y
	p.px, p.hasX = x.path(family)
	p.py, p.hasY = y.path(family)
	return p
}

func join(x, y Side, family string) Direction {
	p := pairOf(x, y, family)
	back := pairOf(y, x, family)
	p.backFail = back.state() == Fails
	w := Direction{From: x.Node, To: y.Node, Family: family, Is: p.state(), Seen: p.seen()}
	switch {
	case w.Is.bad():
		w.Since = p.since()
		w.Cause, w.At, w.Text = p.cause()
		w.Text = w.what() + ": " + w.Text
	case w.Is == Works:
		w.Since = p.wellSince()
		w.Text = fmt.Sprintf("pods on %s reach pods on %s", x.Node, y.Node)
		if why, node := p.away(); why != "" {
			w.Cause, w.At, w.Text = CauseAgentAway, node, w.Text+"; "+why
		}
	default:
		w.Cause, w.At, w.Text = p.unknown()
	}
	return w
}

// what says that a direction does not work.
func (w Direction) what() string {
	of := map[DirectionState]string{Fails: "no %spackets pass from pods on %s to pods on %s",
		Narrow: "no full-size %spackets pass from pods on %s to pods on %s",
		Lossy:  "some %spackets from pods on %s to pods on %s are lost",
		NoTCP:  "no %sTCP transfers succeed from pods on %s to pods on %s"}[w.Is]
	family := w.Family
	if family != "" {
		family += " "
	}
	return fmt.Sprintf(of, family, w.From, w.To)
}

// answers reports whether packets pass in both directions, as shown by the kernel of an end whose agent is not heard. A
// ping shows it only if an agent is down: else the packets of both count.
func (p oneWay) answers() bool {
	pinged := p.px.EndEcho == string(Answered) || p.py.EndEcho == string(Answered)
	return p.px.Refused || p.py.Refused || pinged && (p.x.Down || p.y.Down)
}

// certain reports whether one end has certain evidence that this direction fails, whatever the other's agent does.
func (p oneWay) certain() bool {
	return p.px.DropsOut != "" || p.py.DropsIn != "" || p.px.NoTunnel != "" || p.py.NoTunnel != ""
}

// sends reports whether x's agent runs and sends to y, and receives whether y's does.
func (p oneWay) sends() bool    { return p.x.NotQueried == "" && p.hasX }
func (p oneWay) receives() bool { return p.y.NotQueried == "" && p.hasY }

// starting reports whether x has only just begun to send, or to hear: y does not know x's packets yet.
func (p oneWay) starting() bool {
	from, to := DirectionState(p.px.FromThere), DirectionState(p.px.ToThere)
	return from == Unknown || from != Fails && to == Unknown
}

// state is what the ends know about the direction from x to y.
func (p oneWay) state() DirectionState {
	heard, reported := DirectionState(p.py.FromThere), DirectionState(p.px.ToThere)
	switch {
	case p.noTCP():
		return NoTCP
	case p.receives() && slices.Contains([]DirectionState{Works, Narrow, Lossy}, heard):
		return heard
	case p.answers():
		return Works
	case p.receives() && heard == Fails && reported == Works: // at different times: y has reported to x that it hears x
		return Unknown
	case p.receives() && heard == Fails && p.counts():
		return Fails
	case p.sends() && reported != "" && reported != Unknown: // y has reported it to x
		return reported
	}
	return Unknown
}

// noTCP reports whether transfers to y fail, and nothing else: x alone knows.
func (p oneWay) noTCP() bool {
	return p.sends() && DirectionState(p.px.ToThere) == NoTCP && (!p.receives() || DirectionState(p.py.FromThere) == Works)
}

// counts reports whether y not hearing x shows that the direction fails: x sends, or certainly would not be heard, or
// could not be queried while y's agent reports a fault.
func (p oneWay) counts() bool {
	unreported := p.x.NotQueried != "" && !p.x.Down && p.py.State == "broken"
	return p.sends() && !p.starting() || p.certain() || unreported
}

// since is since when the direction was found not to work, by the end that found it first.
func (p oneWay) since() (t time.Time) {
	for _, q := range []api.ReachPath{p.py, p.px} {
		if q.State == "broken" && (t.IsZero() || q.Since.Before(t)) {
			t = q.Since
		}
	}
	return t
}

// wellSince is since when both ends find both directions working.
func (p oneWay) wellSince() (t time.Time) {
	for _, q := range []api.ReachPath{p.py, p.px} {
		if q.State == "reached" && q.Since.After(t) {
			t = q.Since
		}
	}
	return t
}

// cause is why the direction does not work, trying causes from certain to unknown, and which node has the fault.
func (p oneWay) cause() (c Cause, at, text string) {
	switch {
	case p.state() == Fails:
		return p.failure()
	case p.state() == NoTCP:
		if c = CauseTCP; p.px.Cause == string(CauseSegments) {
			c = CauseSegments
		}
		return c, "", transferText(c)
	case p.state() == Narrow && p.refutesMTU():
		if c, at, text = p.tapped(true); c != CauseNone {
			return c, at, "small packets pass; as for the others, " + text
		}
		return CauseNotFound, "", "small packets pass; what drops the others could not be determined"
	case p.state() == Narrow:
		return CauseMTU, "", "small packets pass, and the underlay between the nodes does not pass full-size packets either: " +
			"its MTU is smaller somewhere on the path"
	}
	if multi := string(CauseMultipath); p.px.Cause == multi || p.py.Cause == multi {
		return CauseMultipath, "", "all from some source ports, and none from the others: packets take several paths, selected by port, and " +
			"one of the paths drops them, such as a member of a bond or an ECMP next hop"
	}
	return CauseLossy, "", "what drops them could not be determined"
}

// failure is why no packets pass.
func (p oneWay) failure() (c Cause, at, text string) {
	switch {
	case p.px.NoTunnel != "":
		return CauseNoTunnel, p.x.Node, "on node " + p.x.Node + ": " + p.px.NoTunnel
	case p.py.NoTunnel != "":
		return CauseNoTunnel, p.y.Node, "on node " + p.y.Node + ": " + p.py.NoTunnel
	case p.px.DropsOut != "":
		return CauseFirewall, p.x.Node, fmt.Sprintf("node %s drops the tunnel's packets on the way out, %s", p.x.Node, p.px.DropsOut)
	case p.py.DropsIn != "":
		return CauseFirewall, p.y.Node, fmt.Sprintf("node %s drops the tunnel's packets on the way in, %s", p.y.Node, p.py.DropsIn)
	case p.px.Tunnel != "" && p.py.Tunnel != "" && p.px.Tunnel != p.py.Tunnel:
		return CauseTunnelDiffers, "", fmt.Sprintf("node %s has the tunnel %s, and node %s has %s", p.x.Node, p.px.Tunnel, p.y.Node, p.py.Tunnel)
	}
	return p.silence()
}

// refutesMTU reports whether the underlay's MTU is not shown to be the cause: for that, one end's full-size ping must
// have failed while a small one was answered, and neither end's full-size ping may have been answered.
func (p oneWay) refutesMTU() bool {
	shown := func(q api.ReachPath) bool { return q.Echo == string(Answered) && q.FullEcho == string(NoReply) }
	return !shown(p.px) && !shown(p.py) || p.px.FullEcho == string(Answered) || p.py.FullEcho == string(Answered)
}

// silence is why no packets pass, if neither end has certain evidence of its own.
func (p oneWay) silence() (c Cause, at, text string) {
	if node := p.alone(); node != "" {
		return CauseAlone, node, fmt.Sprintf("node %s reaches none of the nodes that it probes, neither their pods nor their own addresses: "+
			"it is cut off, by its own fault or by the underlay next to it", node)
	}
	x, y, underlay := Cause(p.px.Cause), Cause(p.py.Cause), []Cause{CauseUnderlay, CauseAlone}
	c, at, text = p.tapped(false)
	switch {
	case c != CauseNone && c != CauseBetween:
		return c, at, text
	case y == CauseBlocked && x != CauseBlocked:
		return CauseBlocked, p.y.Node, fmt.Sprintf("no packets arrive at node %s from pods on any node that it probes, although nodes answer ping: what carries "+
			"pods' packets may be blocked on node %s or next to it", p.y.Node, p.y.Node)
	case y == CauseBlocked:
		return CauseBlocked, "", "no packets arrive at either node from pods on any node that it probes, although nodes answer ping: what carries pods' packets " +
			"may be blocked between the nodes"
	case p.backFail && p.unpinged() && (c == CauseBetween || slices.Contains(underlay, x) || slices.Contains(underlay, y)):
		return CauseUnderlay, "", "neither pods nor the nodes' own addresses answer each other: the underlay between the nodes passes neither"
	case c != CauseNone:
		return c, at, text
	}
	return CauseNotFound, "", "what drops the packets could not be determined"
}

// alone is the end that is cut off, if the other is not.
func (p oneWay) alone() (node string) {
	x, y := p.px.Cause == string(CauseAlone), p.py.Cause == string(CauseAlone)
	switch {
	case !p.backFail || x == y:
		return ""
	case x:
		return p.x.Node
	}
	return p.y.Node
}

// tapped is where the direction's packets end, according to the taps of both ends.
func (p oneWay) tapped(full bool) (c Cause, at, text string) {
	if c, text = outboundFault("node "+p.x.Node, p.px.Tap, full, Answer(p.px.Echo)); c != CauseNone {
		return c, p.x.Node, text
	}
	switch c, text = inboundFault("node "+p.y.Node, p.py.Tap, full); {
	case c == CauseSource && p.px.Tap.Unheld != "":
		return CauseAddress, p.x.Node, fmt.Sprintf("no interface of node %s has %s, the address of its Node; its packets come from %s",
			p.x.Node, p.px.Tap.Unheld, p.py.Tap.Source)
	case c == CauseSource:
		return c, "", text
	case c == CauseChecksum:
		at, text = checksumFault(p.x.Node, p.px.Tap)
		return c, at, fmt.Sprintf("they arrive at %s of node %s with wrong UDP checksums, so kernels drop them: %s", p.py.Tap.ArrivedBy, p.y.Node, text)
	case c != CauseNone:
		return c, p.y.Node, text
	case !leaves(p.px.Tap, full) || !absent(p.py.Tap, full):
		return CauseNone, "", ""
	}
	carrier := cmp.Or(p.px.Tunnel, "packets with pods' addresses")
	text = fmt.Sprintf("they leave node %s through %s, and do not arrive at any interface of node %s: something between the nodes drops them (%s)",
		p.x.Node, p.px.Tap.LeftBy, p.y.Node, carrier)
	switch pings := []Answer{Answer(p.px.Echo), Answer(p.py.Echo)}; {
	case slices.Contains(pings, Answered):
		return CauseBetween, "", text + ", although it passes ping"
	case !slices.Contains(pings, NoReply): // it may pass nothing at all
		return CauseNone, "", ""
	}
	return CauseBetween, "", text
}

// unpinged reports whether the other's address was pinged and did not answer.
func (p oneWay) unpinged() bool {
	return (p.px.Echo == string(NoReply) || p.py.Echo == string(NoReply)) &&
		p.px.Echo != string(Answered) && p.py.Echo != string(Answered)
}

// away names the end whose agent does not run although its node answers.
func (p oneWay) away() (why, node string) {
	for _, s := range []struct {
		Side
		other api.ReachPath // of the other end to this one
	}{{p.x, p.py}, {p.y, p.px}} {
		if s.Down || s.other.Refused || s.other.State == "away" && !(p.sends() && p.receives()) {
			return fmt.Sprintf("the agent of node %s does not answer; its node does", s.Node), s.Node
		}
	}
	return "", ""
}

// unknown says why nothing is known about the direction.
func (p oneWay) unknown() (c Cause, at, text string) {
	for _, s := range []Side{p.x, p.y} {
		if s.Down {
			return CauseAgentAway, s.Node, fmt.Sprintf("the agent of node %s does not answer: %s", s.Node, s.NotQueried)
		}
	}
	for _, s := range []Side{p.x, p.y} {
		if s.Idle != "" {
			return CauseNotProbed, s.Node, fmt.Sprintf("node %s does not probe: %s", s.Node, s.Idle)
		}
	}
	if c, at, text = p.notHeard(); c != CauseNone {
		return c, at, text
	}
	switch {
	case p.x.NotQueried != "":
		return CauseNone, "", fmt.Sprintf("not known: only the agents know, and the agent of node %s could not be queried", p.x.Node)
	case p.y.NotQueried != "":
		return CauseNone, "", fmt.Sprintf("not known: only the agents know, and the agent of node %s could not be queried", p.y.Node)
	case !p.hasX && !p.hasY:
		return CauseNotProbed, "", "the two nodes do not probe each other at present"
	case !p.hasX || !p.hasY:
		node := map[bool]string{true: p.y.Node, false: p.x.Node}[p.hasX]
		return CauseNotProbed, node, fmt.Sprintf("node %s does not probe the other at present", node)
	}
	return CauseNone, "", "not known yet: try again in a few seconds"
}

// notHeard is the cause if one end finds the other, or its agent, away.
func (p oneWay) notHeard() (c Cause, at, text string) {
	for _, q := range []struct {
		api.ReachPath
		Side
	}{{p.py, p.x}, {p.px, p.y}} {
		switch {
		case q.Cause == string(CauseNodeAway) && q.NotQueried == "":
			return CauseNotFound, "", fmt.Sprintf("node %s runs, but does not answer the other at all", q.Side.Node)
		case q.Cause == string(CauseNodeAway):
			return CauseNodeAway, q.Side.Node, fmt.Sprintf("node %s does not answer at all: it is down, or the underlay between the nodes is",
				q.Side.Node)
		case q.State == "away":
			return CauseAgentAway, q.Side.Node, fmt.Sprintf("the agent of node %s is not heard", q.Side.Node)
		}
	}
	return CauseNone, "", ""
}

// seen is what each end reports about the direction.
func (p oneWay) seen() (out []string) {
	comes := map[DirectionState]string{Works: "packets from node %s arrive", Fails: "no packets from node %s arrive",
		Narrow: "small packets from node %s arrive, but no full-size ones", Lossy: "packets from node %s are missing"}
	if what := comes[DirectionState(p.py.FromThere)]; what != "" {
		out = append(out, fmt.Sprintf("node %s: "+what, p.y.Node, p.x.Node))
	} else if what := comes[DirectionState(p.px.ToThere)]; what != "" {
		out = append(out, fmt.Sprintf("node %s, as reported to node %s: "+what, p.y.Node, p.x.Node, p.x.Node))
	}
	for _, s := range []struct {
		side Side
		path api.ReachPath
	}{{p.x, p.px}, {p.y, p.py}} {
		reports := s.path.Seen
		if s.side.NotQueried != "" {
			reports = append([]string{"not queried: " + s.side.NotQueried}, reports...)
		}
		if s.path.State == "broken" && s.path.EndEcho == string(Answered) {
			reports = append(slices.Clip(reports), "ping of the other's end, as pods would send it: answered")
		}
		for _, what := range reports {
			out = append(out, fmt.Sprintf("node %s: %s", s.side.Node, what))
		}
	}
	return out
}
