package reach

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
)

// known is an end's report about its path: "from to state cause".
func known(words string, with ...func(*api.ReachPath)) (s Side) {
	var p api.ReachPath
	if n, _ := fmt.Sscan(words, &p.FromThere, &p.ToThere, &p.State, &p.Cause); n < 3 {
		panic(words)
	}
	p.Family, p.Since = "IPv4", time.Unix(1e9, 0)
	for _, w := range with {
		w(&p)
	}
	return Side{Paths: []api.ReachPath{p}}
}

func pinged(echo, full, end Answer) func(*api.ReachPath) {
	return func(p *api.ReachPath) { p.Echo, p.FullEcho, p.EndEcho = string(echo), string(full), string(end) }
}

// Cases that the simulated cluster of package agent/reach lacks: see there for faults and directions.
func TestJoin(t *testing.T) {
	noTunnel := func(p *api.ReachPath) { p.NoTunnel = "it has no address" }
	tunnel := func(is string) func(*api.ReachPath) { return func(p *api.ReachPath) { p.Tunnel = is } }
	drops := func(in, out string) func(*api.ReachPath) {
		return func(p *api.ReachPath) { p.DropsIn, p.DropsOut = in, out }
	}
	left := func(is api.Checksums) func(*api.ReachPath) {
		return func(p *api.ReachPath) {
			p.Tap = api.ReachTap{Sent: 6, Left: 6, LeftBy: "eth1", LeftSums: is, Driver: "bnx"}
		}
	}
	arrived := func(p *api.ReachPath) {
		p.Tap = api.ReachTap{Sent: 6, Arrived: 6, ArrivedBy: "eth0", ArrivedSums: "wrong"}
	}
	down, forbidden := Side{NotQueried: "nothing listens there", Down: true}, Side{NotQueried: "may not be asked"}
	idle, none := Side{Idle: "reachability: none"}, Side{}
	for _, c := range []struct {
		name        string
		a, b        Side
		there, back string // state, cause, node
		text        string // of the first direction that is not well
	}{
		{"b's agent does not probe", known("fails unknown broken not-found"), idle, "unknown not-probed b", "unknown not-probed b",
			"node b does not probe: reachability: none"},
		{"neither does a's", idle, idle, "unknown not-probed a", "unknown not-probed b", "node a does not probe"},
		{"they do not probe each other", none, none, "unknown not-probed ", "unknown not-probed ", "do not probe each other"},
		{"b does not probe a", known("fails unknown broken not-found"), none, "unknown not-probed b", "unknown not-probed b",
			"node b does not probe the other at present"},
		{"b may not be asked, and is well", known("works works reached"), forbidden, "works  ", "works  ", ""},
		{"b may not be asked, and does not hear a", known("works fails broken not-found"), forbidden, "fails not-found ", "works  ", "no IPv4 packets pass from pods on a to pods on b"},
		{"b may not be asked, and is not heard", known("fails unknown broken not-found"), forbidden, "unknown  ", "fails not-found ",
			"not known: only the agents know, and the agent of node b could not be queried"},
		{"b may not be asked, and is not heard yet", known("fails unknown unknown"), forbidden, "unknown  ", "unknown  ", "not known"},
		{"b may not be asked, and answers ping of pods", known("fails unknown away agent-away", pinged(Answered, "", Answered)),
			forbidden, "unknown agent-away b", "unknown agent-away b", "the agent of node b is not heard"},
		{"b is down", known("fails unknown away node-away", pinged(NoReply, "", NoReply)), forbidden, "unknown node-away b",
			"unknown node-away b", "node b does not answer at all"},
		{"neither may be asked", forbidden, forbidden, "unknown  ", "unknown  ", "the agent of node a could not be queried"},
		{"b's agent is dead and a refused", known("unknown unknown away agent-away", func(p *api.ReachPath) { p.Refused = true }), down,
			"works agent-away b", "works agent-away b", ""},
		{"b's agent is dead and has said so", known("unknown unknown away agent-away"), down, "unknown agent-away b",
			"unknown agent-away b", "the agent of node b does not answer: nothing listens there"},
		{"both agents are dead", down, down, "unknown agent-away a", "unknown agent-away b", "the agent of node a does not answer"},
		{"pings pass, and what agents send does not", known("fails unknown away agent-away", pinged(Answered, Answered, Answered)),
			known("fails unknown away agent-away", pinged(Answered, Answered, Answered)), "fails not-found ", "fails not-found ",
			"what drops the packets could not be determined"},
		{"a has just begun, and b has not heard it", known("works unknown unknown"), known("fails unknown broken not-found"),
			"unknown  ", "works  ", "try again"},
		{"a has just begun, and has heard nothing", known("unknown unknown unknown"), known("fails unknown broken not-found"),
			"unknown  ", "unknown  ", "try again"},
		{"both have just begun", known("unknown unknown unknown"), known("unknown unknown unknown"), "unknown  ", "unknown  ", "not known yet"},
		{"the ends differ for a moment", known("works fails broken not-found"), known("works works reached"), "works  ", "works  ", ""},
		{"a has no tunnel", known("fails unknown broken no-tunnel", noTunnel), known("fails unknown broken not-found"),
			"fails no-tunnel a", "fails no-tunnel a", "on node a: it has no address"},
		{"their tunnels differ", known("fails unknown broken blocked", tunnel("geneve, udp port 6081")),
			known("fails unknown broken not-found", tunnel("vxlan, udp port 4789")), "fails tunnel-differs ", "fails tunnel-differs ",
			"node a has the tunnel geneve, udp port 6081, and node b has vxlan, udp port 4789"},
		{"one has a tunnel, the other an agent that does not say", known("fails unknown broken not-found",
			tunnel("geneve, udp port 6081")), known("fails unknown broken not-found"), "fails not-found ", "fails not-found ", ""},
		{"lossy there", known("works lossy broken lossy"), known("lossy works broken lossy"), "lossy lossy ", "works  ",
			"some IPv4 packets from pods on a to pods on b are lost: what drops them"},
		{"narrow, as one end's ping shows", known("works narrow broken mtu", pinged(Answered, NoReply, "")),
			known("narrow works broken not-found"), "narrow mtu ", "works  ", "MTU is smaller"},
		{"narrow, and the ends' pings differ", known("works narrow broken mtu", pinged(Answered, NoReply, "")),
			known("narrow works broken not-found", pinged(Answered, Answered, "")), "narrow not-found ", "works  ", "could not be determined"},
		{"narrow, and a firewall that drops all, as an end has found before", known("works narrow broken not-found", drops("", "rule 5")),
			known("narrow works broken not-found", drops("rule 7", "")), "narrow not-found ", "works  ", "small packets pass"},
		{"a firewall for the other direction alone", known("works fails broken not-found", drops("rule 5", "")),
			known("fails unknown broken not-found", drops("", "rule 7")), "fails not-found ", "works  ", "could not be determined"},
		{"a's verdict is the underlay, and b's ping was answered",
			known("fails unknown broken underlay", pinged(NoReply, "", NoReply)),
			known("fails unknown broken not-found", pinged(Answered, "", NoReply)), "fails not-found ", "fails not-found ", "could not be determined"},
		{"both are cut off", known("fails unknown broken cut-off", pinged(NoReply, "", NoReply)),
			known("fails unknown broken cut-off", pinged(NoReply, "", NoReply)), "fails underlay ", "fails underlay ", "passes neither"},
		{"both hear no pods", known("fails unknown broken blocked", pinged(Answered, Answered, NoReply)),
			known("fails unknown broken blocked", pinged(Answered, Answered, NoReply)), "fails blocked ", "fails blocked ", "between the nodes"},
		{"the sender's NIC computes wrong checksums", known("works fails broken not-found", left("offloaded")),
			known("fails unknown broken checksum", arrived), "fails checksum a", "works  ", "node a leaves them to eth1, driver bnx, which computes them wrongly"},
		{"the sender computes wrong checksums", known("works fails broken not-found", left("wrong")),
			known("fails unknown broken checksum", arrived), "fails checksum a", "works  ", "already wrong where they leave node a, through eth1"},
		{"something between spoils checksums", known("works fails broken not-found", left("right")),
			known("fails unknown broken checksum", arrived), "fails checksum ", "works  ", "something between the nodes changes the packets"},
		{"wrong checksums, and it is not known where from", known("works fails broken not-found"),
			known("fails unknown broken checksum", arrived), "fails checksum ", "works  ", "the NIC of node a computes them wrongly, or something between"},
	} {
		c.a.Node, c.b.Node = "a", "b"
		directions := Join(c.a, c.b)
		var got []string
		for _, w := range directions {
			got = append(got, fmt.Sprintf("%s %s %s", w.Is, w.Cause, w.At))
			if w.Text == "" || w.Is == Works && w.Cause == CauseNone && strings.Contains(w.Text, ":") {
				t.Errorf("%s: %+v", c.name, w)
			}
		}
		if !slices.Equal(got, []string{c.there, c.back}) {
			t.Errorf("%s: %q, want %q, %q\n%+v", c.name, got, c.there, c.back, directions)
		}
		i := slices.IndexFunc(directions, func(w Direction) bool { return w.Is != Works })
		if c.text != "" && !strings.Contains(directions[max(0, i)].Text, c.text) {
			t.Errorf("%s: %q lacks %q", c.name, directions[max(0, i)].Text, c.text)
		}
	}
}

// Whatever both ends report: a direction that fails was reported to fail, and a node that is blamed has reported the
// evidence itself.
func TestJoinEverything(t *testing.T) {
	directions := []string{"unknown", "works", "fails", "narrow", "lossy"}
	for i := range 5 * 5 * 5 * 5 * 2 * 2 * 3 * 3 {
		pick := func(n int) int { defer func() { i /= n }(); return i % n }
		a := known(directions[pick(5)] + " " + directions[pick(5)] + " broken not-found")
		b := known(directions[pick(5)] + " " + directions[pick(5)] + " broken not-found")
		pa, pb := &a.Paths[0], &b.Paths[0]
		pa.DropsIn, pb.DropsOut = []string{"", "rule"}[pick(2)], []string{"", "rule"}[pick(2)]
		for _, s := range []*Side{&a, &b} {
			switch pick(3) {
			case 1:
				s.NotQueried, s.Paths = "forbidden", nil
			case 2:
				s.NotQueried, s.Down, s.Paths = "dead", true, nil
			}
		}
		a.Node, b.Node = "a", "b"
		said := len(a.Paths)+len(b.Paths) > 0
		for _, w := range Join(a, b) {
			by := func(what string) bool {
				first, second := pa.ToThere, pb.FromThere
				if w.From == "b" {
					first, second = pb.ToThere, pa.FromThere
				}
				return said && (first == what || second == what)
			}
			switch {
			case w.Is != Unknown && !by(string(w.Is)):
				t.Errorf("%+v, of %+v and %+v", w, a, b)
			case w.Cause == CauseFirewall && !(w.From == "b" && (w.At == "a" && pa.DropsIn != "" || w.At == "b" && pb.DropsOut != "")):
				t.Errorf("a firewall is accused without evidence: %+v, of %+v and %+v", w, a, b)
			case w.Bad() && (w.Cause == CauseNone || len(w.Seen) == 0), w.Text == "":
				t.Errorf("nothing is said of it: %+v, of %+v and %+v", w, a, b)
			}
		}
	}
}

// Reports that the two ends made at different times are not combined into a fault: y had not heard x when it was
// queried, but has since reported to x that it does.
func TestJoinOfDifferentTimes(t *testing.T) {
	early, late := known("fails unknown broken not-found"), known("works works reached")
	for _, w := range Join(late, early) {
		if w.Bad() {
			t.Errorf("%+v", w)
		}
	}
}

// A momentary failure of Open vSwitch is not the cause if only some packets are lost.
func TestNoTunnelIsNoCauseOfLoss(t *testing.T) {
	x := known("works narrow broken mtu", func(p *api.ReachPath) { p.NoTunnel = "OVSDB is down" })
	y := known("narrow works broken mtu")
	for _, w := range Join(x, y) {
		if w.Cause == CauseNoTunnel {
			t.Errorf("%+v", w)
		}
	}
}
