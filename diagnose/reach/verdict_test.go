package reach

import (
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
)

// Each row is a fault and an agent's evidence of it. A wrong cause is worse than none.
func TestJudge(t *testing.T) {
	in, out := State{From: Fails, To: Unknown, EverHeard: true}, State{From: Works, To: Fails, EverHeard: true}
	narrowOut := State{From: Works, To: Narrow, EverHeard: true}
	for _, c := range []struct {
		name  string
		e     Evidence
		cause Cause
		told  bool
		text  []string
		fresh bool
	}{
		{"all is well", Evidence{State: State{From: Works, To: Works, EverHeard: true}}, CauseNone, false, nil,
			false},
		{"too early", Evidence{State: State{From: Unknown, To: Unknown}, Echo: NoReply}, CauseNone, false,
			nil, false},
		{"not asked yet", Evidence{State: in, Counts: Counts{Peers: 9, Heard: 8}}, CauseNone, false, nil, false},
		{"a dead agent", Evidence{State: State{From: Unknown, To: Unknown, Away: true}, Echo: Answered,
			Counts: Counts{Peers: 1}}, CauseAgentAway, false,
			[]string{"agent of node b does not answer"}, false},
		{"an agent that hangs", Evidence{State: in, Echo: Answered, EndEcho: Answered, Counts: Counts{Peers: 9, Heard: 8}},
			CauseAgentAway, false, []string{"agent of node b is not heard"}, false},
		{"a dead node", Evidence{State: in, Echo: NoReply, Counts: Counts{Peers: 9, Heard: 8}}, CauseNodeAway, false,
			[]string{"node b does not answer at all"}, false},
		{"two of two nodes restart", Evidence{State: in, Echo: NoReply, Counts: Counts{Peers: 2}}, CauseNodeAway, false, nil, false},
		{"the only other node restarts", Evidence{State: in, Echo: NoReply, Counts: Counts{Peers: 1}}, CauseNodeAway, false,
			nil, false},
		{"dropped on the way to here", Evidence{State: in, Echo: Answered, Counts: Counts{Peers: 9, Heard: 8}}, CauseNotFound, true,
			[]string{"no IPv4 packets pass from pods on node b to pods on this node (whether they pass in the other direction is known only on node b)", "could not be determined"}, false},
		{"dropped on the way there", Evidence{State: out, Echo: Answered, Counts: Counts{Peers: 9, Heard: 9}}, CauseNotFound, true,
			[]string{"no IPv4 packets pass from pods on this node to pods on node b: what drops"}, false},
		{"dropped on the way there, ICMP as well", Evidence{State: out, Echo: NoReply, Counts: Counts{Peers: 9, Heard: 9}},
			CauseNotFound, true, nil, false},
		{"ping cannot be sent", Evidence{State: in, Echo: CannotPing, Lasting: true, Counts: Counts{Peers: 9, Heard: 8}},
			CauseNotFound, true, nil, false},
		{"ping cannot be sent, and the node may be down", Evidence{State: in, Echo: CannotPing, Counts: Counts{Peers: 9, Heard: 8}},
			CauseNone, false, nil, false},
		{"ping cannot be sent, and the node is not ready", Evidence{State: in, Echo: CannotPing, Lasting: true, NotReady: true,
			Counts: Counts{Peers: 9, Heard: 8}}, CauseNone, false, nil, false},
		{"a node that does not probe", Evidence{State: State{From: Fails, To: Unknown}, Echo: Answered, EndEcho: NoReply,
			GatewayEcho: Answered, Counts: Counts{Peers: 9, Heard: 8}}, CauseAgentAway, false,
			[]string{"is not heard; the gateway of its pods answers"}, false},
		{"dropped by this node's firewall", Evidence{State: in, Echo: Answered, DropsIn: "rule 5", Counts: Counts{Peers: 9}},
			CauseFirewall, true,
			[]string{"from pods on node b to pods on this node", "rule 5"}, false},
		{"dropped here on the way out", Evidence{State: out, Echo: Answered, DropsOut: "rule 7",
			Counts: Counts{Peers: 9, Heard: 9}}, CauseFirewall, true,
			[]string{"from pods on this node to pods on node b", "rule 7"}, false},
		{"dropped elsewhere, and a rule here that is about the other direction", Evidence{State: out,
			Echo: Answered, DropsIn: "rule 5", Counts: Counts{Peers: 9, Heard: 9}},
			CauseNotFound, true, nil, false},
		{"nor does a rule for what leaves explain what does not come", Evidence{State: in, Echo: Answered,
			DropsOut: "rule 7", Counts: Counts{Peers: 9, Heard: 8}},
			CauseNotFound, true, nil, false},
		{"no tunnel", Evidence{State: in, Echo: Answered, NoTunnel: "it has no address", Counts: Counts{Peers: 9}},
			CauseNoTunnel, true, []string{"it has no address"}, false},
		{"none is heard, underlay well", Evidence{State: in, Echo: Answered, Counts: Counts{Peers: 9, Pinged: 9}, Tunnel: "udp port 6081"},
			CauseBlocked, true, []string{"on the 9 other nodes", "udp port 6081 may be blocked", "has another type or port than theirs"}, false},
		{"the same without a tunnel", Evidence{State: in, Echo: Answered, Counts: Counts{Peers: 9, Pinged: 9}}, CauseBlocked,
			true, []string{"pods' addresses may be dropped"}, false},
		{"the only other node is not heard, underlay well", Evidence{State: in, Echo: Answered, Counts: Counts{Peers: 1, Pinged: 1}},
			CauseNotFound, true, []string{"from pods on node b to pods on this node", "could not be determined"}, false},
		{"cut off altogether", Evidence{State: in, Echo: NoReply, Counts: Counts{Peers: 9}, Lasting: true}, CauseAlone,
			true, []string{"none of the 9 other nodes"}, false},
		{"the cable of this node is out", Evidence{State: State{From: Fails, To: Unknown}, Echo: NoReply, NoCarrier: "eth0",
			Counts: Counts{Peers: 1}}, CauseAlone, true, []string{"eth0 has no carrier"}, true},
		{"nor does the gateway answer", Evidence{State: State{From: Fails, To: Unknown}, Echo: NoReply, NoGateway: "192.168.0.1",
			Counts: Counts{Peers: 1, Silent: 1}}, CauseAlone, true, []string{"gateway 192.168.0.1"}, true},
		{"the gateway does not answer, and the other node may be down", Evidence{State: State{From: Fails, To: Unknown}, Echo: NoReply,
			NoGateway: "192.168.0.1", Counts: Counts{Peers: 2, Heard: 1, Silent: 1}}, CauseNodeAway, false, nil, true},
		{"the gateway does not answer, and the other node is not ready", Evidence{State: State{From: Fails, To: Unknown}, Echo: NoReply,
			NoGateway: "192.168.77.1", NotReady: true}, CauseNodeAway, false, nil, true},
		{"no carrier, and another node is heard by another interface", Evidence{State: State{From: Fails, To: Unknown}, Echo: NoReply,
			NoCarrier: "eth0", Counts: Counts{Peers: 2, Heard: 1}}, CauseNodeAway, false, nil, true},
		{"cut off, all of a sudden", Evidence{State: State{From: Fails, To: Unknown, EverHeard: true}, Echo: NoReply,
			Counts: Counts{Peers: 9, Silent: 9}}, CauseAlone, true, []string{"none of the 9 other nodes"}, false},
		{"the same, and few were asked yet", Evidence{State: State{From: Fails, To: Unknown, EverHeard: true}, Echo: NoReply,
			Counts: Counts{Peers: 10, Silent: 5}}, CauseNodeAway, false, nil, false},
		{"the same at the start of all nodes", Evidence{State: State{From: Fails, To: Unknown}, Echo: NoReply,
			Counts: Counts{Peers: 9, Silent: 9}}, CauseNodeAway, false, nil, false},
		{"few others, which may all restart", Evidence{State: State{From: Fails, To: Unknown, EverHeard: true}, Echo: NoReply,
			Counts: Counts{Peers: 4, Silent: 4}}, CauseNodeAway, false, nil, false},
		{"nothing is heard, but a third node answers ping", Evidence{State: in, Echo: NoReply, Lasting: true,
			Counts: Counts{Peers: 9, Pinged: 1}}, CauseUnderlay, true, nil, false},
		{"nothing of one node, which is ready", Evidence{State: in, Echo: NoReply, Lasting: true,
			Counts: Counts{Peers: 9, Heard: 8, Pinged: 1}}, CauseUnderlay, true,
			[]string{"passes neither pods' packets nor ping", "no route back", "has another address"}, false},
		{"nothing of one node, which is not ready", Evidence{State: in, Echo: NoReply, Lasting: true, NotReady: true,
			Counts: Counts{Peers: 8, Heard: 8}}, CauseNodeAway, false, nil, false},
		{"wrong checksums, and ping passes", Evidence{State: in, Echo: Answered, EndEcho: Answered, Settled: true, Quiet: true,
			Counts: Counts{Peers: 9, Heard: 8}, Tap: api.ReachTap{Sent: 6, Arrived: 5, ArrivedBy: "eth0", ArrivedSums: "wrong"}},
			CauseChecksum, true, []string{"they arrive at eth0 of this node with wrong UDP checksums"}, true},
		{"right checksums, and ping passes", Evidence{State: in, Echo: Answered, EndEcho: Answered, Settled: true, Quiet: true,
			Counts: Counts{Peers: 9, Heard: 8}, Tap: api.ReachTap{Sent: 6, Arrived: 5, ArrivedBy: "eth0", ArrivedSums: "right"}},
			CauseAgentAway, false, nil, true},
		{"the underlay's MTU", Evidence{State: narrowOut, Echo: Answered, FullEcho: NoReply,
			UnderlaySize: 1500, Counts: Counts{Peers: 1, Heard: 1}}, CauseMTU, true,
			[]string{"no full-size IPv4 packets pass from pods on this node to pods on node b",
				"does not pass packets of 1500 bytes either"}, false},
		{"an MTU that ping does not see", Evidence{State: narrowOut, Echo: Answered, FullEcho: Answered,
			UnderlaySize: 1500, Counts: Counts{Peers: 1, Heard: 1}},
			CauseNotFound, true, []string{"small packets pass"}, false},
		{"lossy", Evidence{State: State{From: Works, To: Lossy, LostTo: 8, EverHeard: true}, Echo: Answered},
			CauseLossy, true, []string{"packets from pods on this node to pods on node b are lost (8 of the last 32)"}, false},
		{"ping is filtered", Evidence{State: narrowOut, Echo: NoReply, FullEcho: NoReply, UnderlaySize: 1500,
			Counts: Counts{Peers: 1, Heard: 1}}, CauseNotFound, true,
			[]string{"small packets pass"}, false},
		{"a node that starts", Evidence{State: State{From: Fails, To: Unknown}, Echo: Answered,
			Counts: Counts{Peers: 9, Heard: 8}, Quiet: true}, CauseNone, false,
			nil, true},
		{"a node that is silent for seconds", Evidence{State: in, Echo: Answered, Counts: Counts{Peers: 9, Heard: 8}, Settled: true},
			CauseNone, false, nil, true},
		{"a node that restarted unseen", Evidence{State: in, Echo: Answered, Counts: Counts{Peers: 9, Heard: 8},
			Settled: true, Quiet: true}, CauseNone, false, nil, true},
		{"a node that others hear", Evidence{State: in, Echo: Answered, Counts: Counts{Peers: 9, Heard: 8}, Quiet: true,
			Runs: "node c"}, CauseNotFound, true, []string{"what drops the packets could not be determined"}, true},
		{"the same, for seconds", Evidence{State: in, Echo: Answered, Counts: Counts{Peers: 9, Heard: 8}, Runs: "node c"},
			CauseNone, false, nil, true},
		{"a node that others hear, and this one cannot ping", Evidence{State: in, Echo: NoReply, Quiet: true,
			Counts: Counts{Peers: 9, Heard: 8}, Runs: "node c"}, CauseUnderlay, true, []string{"though node c hears it"}, true},
		{"the same, for seconds", Evidence{State: in, Echo: NoReply, Counts: Counts{Peers: 9, Heard: 8}, Runs: "node c"},
			CauseNodeAway, false, nil, true},
		{"the same, and it is not ready", Evidence{State: in, Echo: NoReply, Quiet: true, NotReady: true,
			Counts: Counts{Peers: 9, Heard: 8}, Runs: "node c"}, CauseNodeAway, false, nil, true},
		{"a node that others hear, and ping cannot be sent", Evidence{State: in, Echo: CannotPing, Quiet: true,
			Counts: Counts{Peers: 9, Heard: 8}, Runs: "node c"}, CauseNotFound, true, nil, true},
		{"packets arrive, and are not delivered", Evidence{State: in, Echo: Answered, Counts: Counts{Peers: 9, Heard: 8},
			Quiet: true, Tap: api.ReachTap{Sent: 6, Arrived: 5, ArrivedBy: "eth0"}}, CauseDropped, true, []string{"they arrive at eth0 of this node"}, true},
		{"packets arrive, and Open vSwitch may be restarting", Evidence{State: in, Echo: Answered, Counts: Counts{Peers: 9, Heard: 8},
			Tap: api.ReachTap{Sent: 6, Arrived: 5, ArrivedBy: "eth0"}}, CauseNone, false, nil, true},
		{"an MTU that the tunnel's device has learnt", Evidence{State: narrowOut, Echo: Answered, FullEcho: NoReply, UnderlaySize: 1500,
			Counts: Counts{Peers: 1, Heard: 1}, Tap: api.ReachTap{Sent: 17, Left: 14}}, CauseMTU, true, nil, true},
		{"packets do not leave", Evidence{State: out, Echo: Answered, Counts: Counts{Peers: 9, Heard: 9}, Tap: api.ReachTap{Sent: 6}},
			CauseDropped, true, []string{"they do not leave this node through any interface"}, true},
		{"packets do not leave for a node that answers nothing", Evidence{State: in, Echo: NoReply, Counts: Counts{Peers: 9, Heard: 8},
			Tap: api.ReachTap{Sent: 6}}, CauseNodeAway, false, nil, true},
		{"all nodes are silent", Evidence{State: in, Echo: Answered, Counts: Counts{Peers: 9}, Settled: true}, CauseBlocked,
			true, nil, true},
		{"all nodes start", Evidence{State: State{From: Fails, To: Unknown}, Echo: Answered, Counts: Counts{Peers: 9},
			Quiet: true}, CauseNone, false, nil, true},
		{"a node that starts, and a rule here", Evidence{State: State{From: Fails, To: Unknown},
			Echo: Answered, DropsIn: "rule 5", Counts: Counts{Peers: 9}},
			CauseFirewall, true, []string{"rule 5"}, true},
	} {
		c.e.Node, c.e.Family = "b", "IPv4"
		if !c.fresh {
			c.e.Settled, c.e.Quiet, c.e.Long = true, true, true
		}
		v := Judge(c.e)
		if v.Cause != c.cause || v.Broken != c.told {
			t.Errorf("%s: %q, broken %v, want %q, %v: %s", c.name, v.Cause, v.Broken, c.cause, c.told, v.Text)
		}
		for _, want := range c.text {
			if !strings.Contains(v.Text, want) {
				t.Errorf("%s: %q lacks %q", c.name, v.Text, want)
			}
		}
		if (c.e.FullEcho == Answered || c.e.Echo == NoReply) && strings.Contains(v.Text, "bytes either") {
			t.Errorf("%s: %q blames an underlay that passes the packets", c.name, v.Text)
		}
	}
	never := Judge(Evidence{Node: "b", Family: "IPv6", State: State{From: Fails, To: Unknown}, Echo: Answered,
		Counts:  Counts{Peers: 9, Heard: 8},
		Settled: true, Quiet: true, Long: true})
	if !slices.ContainsFunc(never.Seen, func(s string) bool { return strings.Contains(s, "may not probe") }) {
		t.Errorf("what was never heard: %q", never.Seen)
	}
}

// Whatever the evidence, a broken path has a cause and a text, and MTU and firewall are blamed only with evidence.
func TestJudgeEverything(t *testing.T) {
	directions := []DirectionState{Unknown, Works, Fails, Narrow, Lossy}
	for i := range 5 * 5 * 2 * 4 * 4 * 2 * 2 {
		pick := func(n int) int { defer func() { i /= n }(); return i % n }
		e := Evidence{Node: "b", Family: "IPv4", Counts: Counts{Peers: 4}, State: State{From: directions[pick(5)],
			To: directions[pick(5)], Away: pick(2) == 0},
			Echo: []Answer{NotPinged, Answered, NoReply, CannotPing}[pick(4)], FullEcho: []Answer{NotPinged,
				Answered, NoReply, CannotPing}[pick(4)],
			DropsIn: []string{"", "rule"}[pick(2)], DropsOut: []string{"", "rule"}[pick(2)]}
		v, s := Judge(e), e.State
		bad := s.From.bad() || s.To.bad()
		if v.Broken && (v.Cause == CauseNone || v.Text == "" || s.Away || !bad) {
			t.Errorf("%+v: %+v", e, v)
		}
		if v.Cause == CauseMTU && (s.From == Lossy || s.To == Lossy || e.FullEcho != NoReply || e.Echo != Answered) {
			t.Errorf("an MTU is blamed for other losses: %+v", e)
		}
		if v.Cause == CauseFirewall && !(s.From == Fails && e.DropsIn != "" || s.To == Fails && e.DropsOut != "") {
			t.Errorf("a firewall is blamed for what it does not drop: %+v", e)
		}
	}
}
