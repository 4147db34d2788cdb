package reach

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/status"
	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

const (
	// maxSent is how many packets this node sends in an interval: 5 a second.
	maxSent = 10
	// maxFailing is how many nodes are probed because they are not reached.
	maxFailing = 8
	// maxBeside is how many nodes are probed because they are neighbours of a silent node.
	maxBeside = 4
)

// Lengths of headers, in bytes.
const (
	header4 = 20 + 8
	header6 = 40 + 8
)

// path is the path to a node in one family.
type path struct {
	node string
	addr netip.Addr
}

func (p path) family() string {
	if p.addr.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// peer is what is known about a path.
type peer struct {
	pure.Link
	conn       socket // nil before the first packet
	reports    pure.Reports
	askedAbout uint64 // about which node, according to its last packet
	watch
	captureState
}

// session is the exchange of probes of an end. One goroutine owns it.
type session struct {
	*Prober
	end
	network
	done chan []examined

	problem string                // why no node is probed
	nodes   []desired.Peer        // all, by name
	ends    map[netip.Addr]string // their ends
	wanted  []string              // the nodes to probe by their names, in this epoch
	epoch   time.Time
	peers   map[path]*peer
	ovs     string // the ovs-vswitchd that ran, as status.Status has it
	queue   []path // the paths to send on
	pacing
	busy time.Time // since when evidence has been collected; zero: not now
	out  outgoing
}

// pacing is when packets are sent: one per step.
type pacing struct {
	step time.Duration
	next time.Time // when the next is due
}

// network is how a session uses the node's network: it reads received packets, opens sockets to other ends, collects
// evidence about paths, and begins captures of their packets.
type network struct {
	read    func(now time.Time) []heard
	serve   func(now time.Time) // transfers from other ends
	dial    func(from netip.AddrPort, to netip.Addr) (socket, error)
	connect func(from, to netip.Addr, content []byte, single bool) (transfer, error)
	examine func(ctx context.Context, s *status.Status, paths []path) []examined
	open    func(s *status.Status, to path) tap
}

func newSession(p *Prober, e end) *session {
	examiner := &examiner{cfg: p.Config, netns: e.netns}
	t := &session{Prober: p, end: e, done: make(chan []examined, 1), peers: map[path]*peer{}}
	t.network = network{dial: dial, connect: connect, examine: examiner.examine, open: t.openTap}
	return t
}

// run exchanges probes until ctx ends. The calling thread is in the end's namespace, and stays there.
func (t *session) run(ctx context.Context) error {
	var inboxes []inbox
	var listeners []*listener
	for _, a := range t.addrs {
		i, err := listen(a)
		if err != nil {
			return err
		}
		defer i.Close()
		l, err := listenTCP(a)
		if err != nil {
			return err
		}
		defer l.Close()
		inboxes, listeners = append(inboxes, i), append(listeners, l)
	}
	t.read = func(now time.Time) (all []heard) {
		for _, i := range inboxes {
			all = append(all, i.read(now)...)
		}
		return all
	}
	own := pure.NameHash(t.NodeName)
	t.serve = func(now time.Time) {
		for _, l := range listeners {
			l.serve(own, func(a netip.Addr) string { return t.ends[a] }, now.Add(incomingFor*t.Interval), now)
		}
	}
	t.loop(ctx)
	return nil
}

// loop exchanges probes on open sockets. It works in pulses: each wake-up of the agent costs as much as several
// packets, and a packet that is read half a second later means the same.
func (t *session) loop(ctx context.Context) {
	defer t.leave()
	t.choose(time.Now())
	pulse, second := time.NewTicker(t.tick()), time.NewTicker(time.Second)
	defer pulse.Stop()
	defer second.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-pulse.C:
			for _, h := range t.read(now) {
				t.receive(h)
			}
			t.sendDue(now)
			t.serve(now)
			t.transfers(now)
		case now := <-second.C:
			t.choose(now)
			t.evaluate(ctx, now)
		case found := <-t.done:
			t.examined(found, time.Now())
		}
	}
}

func (t *session) tick() time.Duration { return t.Interval / 4 }

// sendDue sends the packets that are due by now, one per step. Those of a time in which the agent did not run are
// skipped.
func (t *session) sendDue(now time.Time) {
	t.followOVS(now)
	if earliest := now.Add(-t.tick()); !t.next.After(earliest) {
		t.next = earliest.Add(1)
	}
	for ; !t.next.After(now) && len(t.queue) > 0; t.next = t.next.Add(t.step) {
		t.send(t.nextPath(), now, false)
	}
}

// followOVS notes that Open vSwitch has stopped or started.
func (t *session) followOVS(now time.Time) {
	start := t.Board.Load().OVSStart
	if start == t.ovs {
		return
	}
	t.ovs = start
	for _, p := range t.peers {
		p.Restarted(now)
	}
}

// choose decides on which paths to send.
func (t *session) choose(now time.Time) {
	t.updateNodes(now)
	chosen, probing := t.selectNodes(now)
	t.queue = t.queue[:0]
	for _, node := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(chosen, probing)))) {
		for _, a := range endsOf(t.peer(node)) {
			if t.hasFamily(a) {
				t.queue = append(t.queue, path{node, a})
			}
		}
	}
	slices.SortFunc(t.queue, inQueue)
	for _, p := range t.queue {
		if t.peers[p] == nil {
			t.peers[p] = &peer{}
		}
		t.peers[p].Initiates = slices.Contains(chosen, p.node)
	}
	t.setPaces(now)
	maps.DeleteFunc(t.peers, func(p path, known *peer) bool {
		gone := !slices.Contains(t.queue, p)
		if gone {
			known.close()
		}
		return gone
	})
}

// selectNodes returns the nodes that this one probes, because their names select them, or did when a path failed, or
// traffic to them is unanswered, or on request; and those that probe this one.
func (t *session) selectNodes(now time.Time) (chosen, probing []string) {
	var failing []string
	for p, known := range t.peers {
		if known.PeerInitiates(now) {
			probing = append(probing, p.node)
		}
		// A node that only the other end has chosen is not kept: it is silent because it no longer probes. A node whose
		// packets are late is kept until its state is decided.
		bad := known.State(now).Doubtful() || known.Undecided(now)
		if known.Initiates && bad && !slices.Contains(t.wanted, p.node) {
			failing = append(failing, p.node)
		}
	}
	slices.Sort(failing)
	failing = slices.Compact(failing)
	chosen = slices.Concat(t.wanted, failing[:min(maxFailing, len(failing))])
	return slices.Concat(chosen, t.suspected(chosen, now), t.requests(now), t.neighboursOfSilent(now)), probing
}

// names are those of all nodes that may have an agent, with this one.
func (t *session) names() []string {
	names := append(make([]string, 0, len(t.nodes)+1), t.NodeName)
	for _, p := range t.nodes {
		if p.NoAgent == "" {
			names = append(names, p.Name)
		}
	}
	return names
}

// neighboursOfSilent are nodes that hear the silent ones, if these run. Other neighbours hear a silent neighbour; a
// silent partner, or a node that is probed on request, is perhaps heard by none of the nodes that are probed.
func (t *session) neighboursOfSilent(now time.Time) (out []string) {
	var silent []string
	for p, known := range t.peers {
		near := slices.Contains(t.wanted[:min(pure.Neighbours, len(t.wanted))], p.node)
		if known.Initiates && !near && known.Missing(now) && known.Silent(now) < pure.Grace*t.Interval {
			silent = append(silent, p.node)
		}
	}
	slices.Sort(silent)
	for _, node := range slices.Compact(silent) {
		if len(out) < maxBeside {
			out = append(out, pure.NeighboursOf(node, t.names())...)
		}
	}
	return out
}

// peer is the node of that name; the zero value if there is none.
func (t *session) peer(node string) desired.Peer {
	p, _ := peerIn(t.nodes, node)
	return p
}

// peerIn finds the node of that name in nodes, which are sorted by name. It is called every second, with thousands of
// nodes.
func peerIn(nodes []desired.Peer, name string) (p desired.Peer, found bool) {
	byName := func(p desired.Peer, name string) int { return cmp.Compare(p.Name, name) }
	i, found := slices.BinarySearchFunc(nodes, name, byName)
	if found {
		p = nodes[i]
	}
	return p, found
}

func (t *session) notReady(node string) bool { return t.peer(node).NotReady }

// updateNodes updates the nodes that may have an agent, and those that the names select, if that has changed.
func (t *session) updateNodes(now time.Time) {
	board, epoch := t.Board.Load(), now.Truncate(pure.Epoch)
	nodes := board.Peers
	if t.problem = removed(board.Snapshot, t.NodeName); t.problem != "" {
		nodes = nil
	}
	same := len(nodes) == len(t.nodes) && (len(nodes) == 0 || &nodes[0] == &t.nodes[0])
	if same && epoch.Equal(t.epoch) {
		return
	}
	t.nodes = nodes
	t.wanted, t.epoch = pure.Peers(t.NodeName, t.names(), now), epoch
	if same && t.ends != nil {
		return
	}
	t.ends = make(map[netip.Addr]string, len(nodes))
	for _, p := range nodes {
		for _, a := range endsOf(p) {
			t.ends[a] = p.Name
		}
	}
}

// removed says that this node's Node is gone, so that no other node forwards packets to its pods, or that it counts as
// having no agent, so that no other node probes it. If all Nodes are gone, the input was lost.
func removed(s *inputs.Snapshot, own string) string {
	if s == nil || s.Unread || len(s.Nodes) == 0 {
		return ""
	}
	n, there := s.Nodes[own]
	switch {
	case !there:
		return fmt.Sprintf("there is no Node %s (any longer): other nodes forward no packets to its pods", own)
	case n.NoAgent != "":
		return fmt.Sprintf("other nodes do not probe node %s: %s", own, n.NoAgent)
	}
	return ""
}

// endsOf are the addresses of a node's end; none if no agent creates one.
func endsOf(p desired.Peer) (out []netip.Addr) {
	if p.NoAgent != "" {
		return nil
	}
	for _, c := range p.PodCIDRs {
		if a := pure.End(c.Prefix); a.IsValid() {
			out = append(out, a.Addr())
		}
	}
	return out
}

func (t *session) hasFamily(a netip.Addr) bool {
	return slices.ContainsFunc(t.addrs, func(own netip.Addr) bool { return own.Is4() == a.Is4() })
}

// ownAddr is this end's address of the same family; it must exist.
func (t *session) ownAddr(a netip.Addr) netip.Addr {
	return t.addrs[slices.IndexFunc(t.addrs, func(own netip.Addr) bool { return own.Is4() == a.Is4() })]
}

// receive processes a packet. One that is not from a node's end, or not for this one, is dropped: table 0 ensures that
// only that node can send with its end's address.
func (t *session) receive(h heard) {
	node, known := t.ends[h.from]
	if !known || h.packet.From != pure.NameHash(node) || h.packet.To != pure.NameHash(t.NodeName) {
		t.Metrics.Reach.Packets.WithLabelValues("ignored").Inc()
		return
	}
	t.Metrics.Reach.Packets.WithLabelValues("heard").Inc()
	p := path{node, h.from}
	if t.peers[p] == nil && !h.packet.Initiates {
		return // the last packets of a node that this end no longer probes
	}
	if t.peers[p] == nil { // packets are sent to it from the next second on
		t.peers[p] = &peer{Link: pure.Link{Interval: t.Interval * time.Duration(len(t.addrs))}}
	}
	t.peers[p].Receive(h.packet, h.at)
	t.peers[p].askedAbout = h.packet.About
	t.recordReports(p, h)
}

// recordReports records what a packet says about silent nodes: the one that it is about, and its sender, which is up
// though its other family may be silent.
func (t *session) recordReports(from path, h heard) {
	for q, silent := range t.peers {
		switch {
		case q.node == from.node && q != from && !h.packet.Leaving:
			silent.reports.Add(&silent.Link, "this node, by "+from.family()+",", h.at)
		case h.packet.Other.Node != 0 && h.packet.Other.Node == pure.NameHash(q.node):
			silent.reports.Add(&silent.Link, "node "+from.node, h.at.Add(-h.packet.Other.Age))
		}
	}
}

// question is the node that the next packet of a path asks about: each silent one in turn; 0: none.
func (t *session) question(to path, now time.Time) uint64 {
	var silent []uint64
	for _, q := range t.queue {
		if q.node == to.node || !t.peers[q].Missing(now) {
			continue
		}
		if hash := pure.NameHash(q.node); !slices.Contains(silent, hash) {
			silent = append(silent, hash)
		}
	}
	if len(silent) == 0 {
		return 0
	}
	return silent[int(t.peers[to].Sent())%len(silent)]
}

// answer is what was heard here from the node with that hash, in any family.
func (t *session) answer(about uint64, now time.Time) (o pure.Other) {
	for q, known := range t.peers {
		age, of := known.HeardAgo(now)
		if about != 0 && of && pure.NameHash(q.node) == about && (o.Node == 0 || age < o.Age) {
			o = pure.Other{Node: about, Age: age}
		}
	}
	return o
}

// send sends the next packet of a path, from another port than the last: the path's own, or one that the kernel
// chooses.
func (t *session) send(to path, now time.Time, leaving bool) {
	p := t.peers[to]
	if p == nil {
		return
	}
	if p.conn != nil {
		if p.conn.Refused() {
			p.Refused(now)
		}
		p.conn.Close()
		p.conn = nil
	}
	packet := p.Next(now)
	packet.From, packet.To = pure.NameHash(t.NodeName), pure.NameHash(to.node)
	packet.MTU, packet.Leaving = uint16(min(t.mtu, 1<<16-1)), leaving
	packet.About, packet.Other = t.question(to, now), t.answer(p.askedAbout, now)
	size := 0
	if packet.Full {
		size = t.fullSize(to, p)
	}
	conn, err := t.dial(netip.AddrPortFrom(t.ownAddr(to.addr), packet.Port()), to.addr)
	if err == nil {
		p.conn = conn
		_, err = conn.Write(packet.Append(nil, size))
	}
	if err != nil {
		t.Log.V(1).Info("sending", "node", to.node, "reason", err.Error())
		return
	}
	t.Metrics.Reach.Packets.WithLabelValues("sent").Inc()
}

// fullSize is the longest payload that pods of both nodes can send.
func (t *session) fullSize(to path, p *peer) int {
	mtu := t.mtu
	if theirs := p.PeerMTU(); theirs > 0 {
		mtu = min(mtu, theirs)
	}
	if to.addr.Is4() {
		return mtu - header4
	}
	return mtu - header6
}

// leave informs all that this end stops.
func (t *session) leave() {
	for _, to := range t.queue {
		t.send(to, time.Now(), true)
	}
	t.endTransfer()
	for _, p := range t.peers {
		p.close()
	}
}

// close ends all activity on a path.
func (p *peer) close() {
	if p.conn != nil {
		p.conn.Close()
	}
	p.forget(pure.State{})
}
