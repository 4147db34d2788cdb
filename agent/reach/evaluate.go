package reach

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/nat"
	"github.com/fairlead-cni/fairlead/datapath/uplink/gateways"
	"github.com/fairlead-cni/fairlead/datapath/wire"
	"github.com/fairlead-cni/fairlead/diagnose/firewall"
	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
)

const (
	// evidenceAge is how old evidence may get while a path does not work. Each time that it is unchanged, that limit
	// doubles, up to maxAge: a node may be off for days.
	evidenceAge, maxAge = 3 * time.Second, 2 * time.Minute
	// rulesAge is how old the nftables rules that were read may get.
	rulesAge = 15 * time.Second
	// atOnce is how many paths are examined at once.
	atOnce = 4
	// echoWait is how long to wait for the answer to a ping, and echoSize the length of a small one, in bytes.
	echoWait = time.Second
	echoSize = 84
)

// watch is what is known about a path in addition to its packets.
type watch struct {
	evidence        pure.Evidence
	at              time.Time // when collecting the evidence began
	age             time.Duration
	judged          pure.State // what was known about the path then
	host            pure.Host
	verdict         pure.Verdict
	verdictState    pure.State    // what was known about the path when the verdict was new
	verdictEvidence pure.Evidence // of the verdict
	cannotSendSince time.Time     // since when this node has had no tunnel, or no Open vSwitch
	broken          time.Time     // since when the verdict has been that the path is broken
	workingSince    time.Time     // since when both directions have worked
	causeLostSince  time.Time     // since when the reported cause has no longer been found
	doubted         time.Time     // since when a fault has not been reported because the evidence is old
	noneHeardAt     time.Time     // until when none of several nodes were heard
}

// examined is the evidence about a path.
type examined struct {
	path
	pure.Evidence
}

// evaluate judges all paths, publishes the findings, and has paths that do not work examined.
func (t *session) evaluate(ctx context.Context, now time.Time) {
	var doubtful []path
	for _, p := range t.queue {
		s := t.peers[p].State(now)
		t.peers[p].dropOld(s)
		// From the first missing packets on: it should be noticed even if a node is down only for a short while.
		if (t.peers[p].Late(now) || s.Doubtful()) && t.peers[p].due(s, now) {
			doubtful = append(doubtful, p)
		}
	}
	counts := t.count(now)
	for _, p := range t.queue {
		t.observe(p, now)
		t.judge(p, counts, now)
	}
	t.publishFindings(now)
	if len(doubtful) == 0 || !t.busy.IsZero() {
		return
	}
	slices.SortFunc(doubtful, func(a, b path) int { return t.peers[a].at.Compare(t.peers[b].at) })
	t.busy = now
	s, doubtful := t.Board.Load(), doubtful[:min(atOnce, len(doubtful))]
	go func() { t.done <- t.examine(ctx, s, doubtful) }()
}

// dropOld drops evidence that was being collected while packets of the path still arrived: it is from before the fault.
func (p *peer) dropOld(s pure.State) {
	if s.From == pure.Fails && p.at.Before(p.Since()) {
		p.evidence, p.at = pure.Evidence{}, time.Time{}
	}
}

// due reports whether evidence has to be collected, which is always so if the path fails in a new way.
func (w *watch) due(s pure.State, now time.Time) bool {
	age := w.age
	if s.From != w.judged.From || s.To != w.judged.To || s.Away != w.judged.Away {
		age = 0
	}
	return now.Sub(w.at) > max(age, evidenceAge)
}

// count counts the nodes that are probed.
func (t *session) count(now time.Time) pure.Counts {
	probed, heard, pinged, silent := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, p := range t.queue {
		s := t.peers[p].State(now)
		if s.From != pure.Fails && s.From != pure.Unknown || s.Away || t.peers[p].evidence.PodsPass() {
			heard[p.node] = true
		} else if t.notReady(p.node) {
			continue
		}
		probed[p.node] = true
		switch t.peers[p].evidence.Echo {
		case pure.Answered:
			pinged[p.node] = true
		case pure.NoReply:
			silent[p.node] = true
		}
	}
	return pure.Counts{Peers: len(probed), Heard: len(heard), Pinged: len(pinged), Silent: len(silent)}
}

// judge says what is wrong with a path, from the evidence that there is.
func (t *session) judge(to path, counts pure.Counts, now time.Time) {
	p := t.peers[to]
	e := p.evidence
	e.Node, e.Family, e.State, e.Counts, e.NotReady = to.node, to.family(), p.State(now), counts, t.notReady(to.node)
	p.host.SetNotReady(e.NotReady, now)
	silent := p.host.Silent(&p.Link, now)
	e.Quiet, e.Lasting = silent >= pure.Quiet*t.Interval, silent >= pure.Lasting*t.Interval
	e.Long = p.Silent(now) >= pure.Grace*t.Interval
	e.Runs = p.reports.HeardBy(&p.Link, now)
	e.Tap = p.captureState.seen
	if e.Tap.Unheld != "" && t.receivesOver(deliveryOf(t.Board.Load(), to).to.Is4(), now) {
		e.Tap.Unheld = "" // something on the path translates it, for all
	}
	e.Settled = p.host.Settled(&p.Link, pure.Grace*t.Interval, now)
	s := t.Board.Load()
	tunnelled := deliveryOf(s, to).tunnelled
	why, brief := p.cannotSend(s, tunnelled, now)
	if !brief {
		e.NoTunnel = why
	}
	if tunnelled {
		e.Tunnel = carriedBy(nat.TunnelOf(t.Config.TunnelType, t.Config.TunnelPort))
	}
	if counts.Heard == 0 && counts.Peers > 1 {
		p.noneHeardAt = now
	}
	before := p.verdict
	v := pure.Judge(e)
	if p.verdict = p.hold(v, e.State, now); brief {
		p.verdict = before
	}
	if !p.verdict.Broken {
		p.doubted = time.Time{}
	} else if !before.Broken && (p.recovering(now) || !p.confirmed(now)) {
		p.verdict = before
	}
	if p.verdict.Text == v.Text {
		p.verdictState = e.State
	}
	t.log(to, before, now)
	if e.State.Works() { // what was seen is outdated
		p.watch = watch{verdict: p.verdict, verdictState: p.verdictState, cannotSendSince: p.cannotSendSince,
			broken: p.broken, workingSince: p.workingSince}
		e = pure.Evidence{State: e.State}
	}
	p.verdictEvidence = e
}

// receivesOver reports whether packets arrive over IPv4, or IPv6, from any other node.
func (t *session) receivesOver(ipv4 bool, now time.Time) bool {
	return slices.ContainsFunc(t.queue, func(q path) bool {
		from := t.peers[q].State(now).From
		return from != pure.Fails && from != pure.Unknown && deliveryOf(t.Board.Load(), q).to.Is4() == ipv4
	})
}

// log logs a new or changed fault, and one that is resolved.
func (t *session) log(to path, before pure.Verdict, now time.Time) {
	p := t.peers[to]
	switch {
	case p.verdict.Broken && !before.Broken:
		p.broken = now
		t.Log.Info("pods of another node are not reached", "node", to.node, "reason", p.verdict.Text)
	case p.verdict.Broken && before.Text != p.verdict.Text:
		t.Log.Info("pods of another node are not reached", "node", to.node, "reason", p.verdict.Text)
	case before.Broken && !p.verdict.Broken:
		t.Log.Info("resolved: pods of another node are not reached", "node", to.node, "reason", before.Text)
	}
}

// confirmed reports whether the evidence for a new fault is current, and has it collected again if it is not: the API
// server reports a returning node as ready before it is pinged again.
func (p *peer) confirmed(now time.Time) bool {
	switch {
	case p.doubted.IsZero():
		p.doubted, p.age = now, 0
	case !p.at.Before(p.doubted):
		p.doubted = time.Time{}
		return true
	}
	return false
}

// recovering reports whether this end has heard other nodes again for less time than it takes a path to fail. Those
// that are still silent have no fault of their own: paths recover one after the other.
func (p *peer) recovering(now time.Time) bool {
	return p.verdict.Cause == pure.CauseNotFound && now.Sub(p.noneHeardAt) < p.Silence()
}

// cannotSend says why this node cannot send on the path. That counts as a cause only when it lasts as long as it takes
// a path to fail: while Open vSwitch restarts, nodes that are not heard may be down.
func (p *peer) cannotSend(s *status.Status, tunnelled bool, now time.Time) (why string, brief bool) {
	switch {
	case s.OVSDown != nil:
		why = s.OVSDown.Error()
	case tunnelled && s.NoTunnel != nil:
		why = s.NoTunnel.Error()
	default:
		p.cannotSendSince = time.Time{}
		return "", false
	}
	if p.cannotSendSince.IsZero() {
		p.cannotSendSince = now
	}
	return why, now.Sub(p.cannotSendSince) < p.Silence()
}

// hold keeps a finding until the path has worked for as long as it takes to fail: on a path that loses nearly all
// packets, one arrives now and then, and a longer gap is not another fault before it has lasted. When a path is heard
// again, it is not known at once whether the other direction works. For the same time it keeps a cause that was found,
// even if it is no longer known: paths recover one after the other. A verdict that a direction fails is not kept once
// that direction works, nor one that nothing at all is heard once something is.
func (p *peer) hold(v pure.Verdict, s pure.State, now time.Time) pure.Verdict {
	works := s.Works()
	worksFor := lasts(&p.workingSince, works, now)
	lost := v.Broken && v.Cause == pure.CauseNotFound && p.verdict.Cause != pure.CauseNotFound &&
		!p.verdictState.Recovered(s)
	lostFor := lasts(&p.causeLostSince, lost, now)
	recent := works && worksFor < p.Silence() || lost && lostFor < p.Silence()
	undecided := v.Cause == pure.CauseNone && s.Doubtful()
	again := s.From == pure.Works && s.To == pure.Unknown && !p.verdict.Cause.Silent()
	if p.verdict.Broken && (recent || again || undecided) {
		return p.verdict
	}
	return v
}

// lasts is for how long something has been true, since at.
func lasts(at *time.Time, is bool, now time.Time) time.Duration {
	switch {
	case !is:
		*at = time.Time{}
	case at.IsZero():
		*at = now
	}
	return now.Sub(*at)
}

// states are in order, the worst last. From lossy on, the path is broken.
func states() []string { return []string{"reached", "unknown", "away", "lossy", "narrow", "broken"} }

// publishFindings publishes the state of all paths.
func (t *session) publishFindings(now time.Time) {
	nodes := map[string]int{} // the worst state of the paths to each, as an index of states
	r := api.AgentReach{Problem: t.problem}
	for _, to := range t.queue {
		p := t.peers[to]
		s, v := p.State(now), p.verdict
		state, how := "unknown", ""
		f := api.ReachFinding{Node: to.node, Family: to.family(), FromThere: string(s.From), ToThere: string(s.To),
			Since: p.workingSince, Cause: string(v.Cause), Text: v.Text, Seen: v.Seen}
		switch {
		case v.Broken:
			state, how = "broken", s.How(v.Cause)
			f.Since, f.Address = p.broken, deliveryOf(t.Board.Load(), to).to
			r.Findings = append(r.Findings, f)
		case v.Cause != pure.CauseNone:
			state = "away"
		case s.Works():
			state = "reached"
		}
		r.Paths = append(r.Paths, p.path(f, state, t.Config.TunnelType))
		nodes[to.node] = max(nodes[to.node], slices.Index(states(), cmp.Or(how, state)))
	}
	count := map[string]int{}
	for _, state := range nodes {
		count[states()[state]]++
	}
	for _, state := range states() {
		t.Metrics.Reach.Peers.WithLabelValues(state).Set(float64(count[state]))
	}
	r.Asked, r.Reached, r.Unknown, r.Away = len(nodes), count["reached"], count["unknown"], count["away"]
	order := func(a, b api.ReachFinding) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Family, b.Family))
	}
	slices.SortFunc(r.Findings, order)
	slices.SortFunc(r.Paths, func(a, b api.ReachPath) int { return order(a.ReachFinding, b.ReachFinding) })
	t.publish(r)
}

// path is what is published about p.
func (p *peer) path(f api.ReachFinding, state, kind string) api.ReachPath {
	e, tunnel := p.verdictEvidence, ""
	if e.Tunnel != "" {
		tunnel = kind + ", " + e.Tunnel
	}
	return api.ReachPath{ReachFinding: f, State: state, Refused: e.State.Refused, DropsIn: e.DropsIn, DropsOut: e.DropsOut,
		NoTunnel: e.NoTunnel, Tunnel: tunnel, Echo: string(e.Echo), FullEcho: string(e.FullEcho), EndEcho: string(e.EndEcho),
		Tap: e.Tap}
}

// examined records evidence. Whether a node answers applies to all paths to it.
func (t *session) examined(found []examined, now time.Time) {
	began := t.busy
	t.busy = time.Time{}
	for _, f := range found {
		for q, p := range t.peers {
			if q == f.path {
				if p.evidence.Echo != f.Echo && !p.at.IsZero() {
					p.forget(p.of) // what was seen before the other node went down or came up is no longer valid
				}
				if p.age = min(2*max(p.age, evidenceAge), maxAge); p.evidence != f.Evidence || p.at.IsZero() {
					p.age = evidenceAge
				}
				p.evidence, p.at, p.judged = f.Evidence, began, p.State(now)
			}
			if q.node == f.node {
				p.host.Pinged(f.Echo, now)
			}
		}
	}
}

// examiner collects evidence, one call at a time.
type examiner struct {
	cfg   api.AgentConfig
	netns string // of this node's end
	rules firewall.Ruleset
	known bool // the rules were read
	read  time.Time
}

// examine collects evidence about paths: pings to the nodes' own addresses, and what this node's firewall drops.
func (e *examiner) examine(ctx context.Context, s *status.Status, paths []path) []examined {
	out := make([]examined, len(paths))
	if time.Since(e.read) > rulesAge {
		e.rules, e.known = ruleset(ctx, e.cfg)
		e.read = time.Now()
	}
	var running sync.WaitGroup
	for i, p := range paths {
		out[i].path = p
		running.Go(func() {
			w := deliveryOf(s, p)
			if out[i].EndEcho = e.pingAsPod(ctx, p.addr); out[i].EndEcho == pure.NoReply && w.gateway.IsValid() {
				out[i].GatewayEcho = e.pingAsPod(ctx, w.gateway)
			}
			if !w.to.IsValid() {
				out[i].Echo = pure.CannotPing
				return
			}
			out[i].UnderlaySize, out[i].NoCarrier = w.size, noCarrier(s.Transport.Name)
			switch out[i].Echo = ping(ctx, w.to, echoSize); out[i].Echo {
			case pure.Answered:
				out[i].FullEcho = ping(ctx, w.to, w.size)
			case pure.NoReply:
				out[i].NoGateway = noGateway(ctx, s.Transport.Name)
			}
			if e.known && w.tunnelled {
				out[i].DropsIn, out[i].DropsOut = drops(e.rules, e.cfg, s, w.to)
			}
		})
	}
	running.Wait()
	return out
}

// noCarrier is the interface's name if it is up and has no carrier. br-uplink loses carrier with its NIC.
func noCarrier(ifName string) string {
	l, err := netlink.LinkByName(ifName)
	if err != nil || l.Attrs().RawFlags&unix.IFF_UP == 0 || l.Attrs().RawFlags&unix.IFF_LOWER_UP != 0 {
		return ""
	}
	return ifName
}

// noGateway are the default gateways on an interface that, as far as could be seen, do not answer.
func noGateway(ctx context.Context, ifName string) string {
	silent, err := gateways.Silent(ctx, ifName, echoWait)
	if err != nil {
		return ""
	}
	return silent
}

// carriedBy is the protocol of a tunnel as a firewall sees it.
func carriedBy(t nat.Tunnel) string {
	if t.Port == 0 {
		return "IP protocol " + t.Protocol
	}
	return fmt.Sprintf("%s port %d", t.Protocol, t.Port)
}

// delivery describes how packets of a path are sent.
type delivery struct {
	to        netip.Addr // the node's own address; invalid: unknown
	size      int        // of full-size packets to pods there, in bytes
	tunnelled bool
	gateway   netip.Addr // of the pods there
}

func deliveryOf(s *status.Status, p path) delivery {
	peer, found := peerIn(s.Peers, p.node)
	if !found {
		return delivery{}
	}
	w := delivery{to: peer.Tunnel, size: s.PodMTU + s.Overhead, tunnelled: true}
	for _, c := range peer.PodCIDRs {
		if !c.Contains(p.addr) {
			continue
		}
		w.gateway = c.Masked().Addr().Next()
		if c.Path != desired.PathTunnel {
			w.to, w.size, w.tunnelled = c.Via, s.PodMTU, false
		}
	}
	if !w.to.IsValid() && s.Snapshot != nil { // it is behind routers
		w.to, _ = s.Snapshot.Nodes[p.node].TunnelAddr(p.addr.Is4())
	}
	return w
}

// pingAsPod pings an address of another node's podCIDR from this node's end.
func (e *examiner) pingAsPod(ctx context.Context, to netip.Addr) pure.Answer {
	answer := pure.CannotPing
	err := link.Within(e.netns, func() error {
		answer = ping(ctx, to, echoSize)
		return nil
	})
	if err != nil {
		return pure.CannotPing
	}
	return answer
}

// ping pings one address.
func ping(ctx context.Context, to netip.Addr, size int) pure.Answer {
	if wire.Echo(ctx, to, size, echoWait) == nil {
		return pure.Answered
	}
	if ctx.Err() != nil {
		return pure.CannotPing
	}
	return pure.NoReply
}

// ruleset reads the nftables rules in the network namespace of the tunnel's packets.
func ruleset(ctx context.Context, cfg api.AgentConfig) (firewall.Ruleset, bool) {
	if !desired.Tunnels(cfg) || cfg.OVSDatapathType == api.DatapathNetdev {
		return firewall.Ruleset{}, false
	}
	if _, err := exec.LookPath("nft"); err != nil {
		return firewall.Ruleset{}, false
	}
	rules, err := firewall.Read(ctx)
	return rules, err == nil
}

// drops are the rules that drop the tunnel's packets from a node and to it.
func drops(rules firewall.Ruleset, cfg api.AgentConfig, s *status.Status, peer netip.Addr) (in, out string) {
	from, to, ok := firewall.TunnelPackets(nat.TunnelOf(cfg.TunnelType, cfg.TunnelPort), s.Transport.Name, peer)
	if !ok {
		return "", ""
	}
	if by, dropped := rules.Dropped(from); dropped {
		in = by.String()
	}
	if by, dropped := rules.Dropped(to); dropped {
		out = by.String()
	}
	return in, out
}
