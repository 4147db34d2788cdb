package addresses

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/wire"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
	"github.com/fairlead-cni/fairlead/ipam/pool"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

const (
	// probeAhead is how many addresses of a pool are probed in advance.
	probeAhead = 3
	// probeUsed is how long a pool counts as in use after the last pod got an address from it.
	probeUsed = 10 * time.Minute
)

// prober probes the underlay for hosts that use an address, and keeps the answer for a while. It probes the next few
// addresses of the pools in use in advance, so that an ADD seldom waits for it.
type prober struct {
	board   *status.Board
	source  inputs.Source
	timeout time.Duration
	// maxAge is how old an answer of the underlay may be; every is the interval at which candidates are probed.
	maxAge, every time.Duration

	more signal.Signal // more candidates are to be probed

	mu      sync.Mutex
	answers map[vlanAddr]answer
	inUse   map[string]time.Time // when a pod last got an address, by the pool's name
}

// vlanAddr is an address in a VLAN.
type vlanAddr struct {
	vlan uint16
	addr netip.Addr
}

// answer is which host uses an address; none if found is false.
type answer struct {
	who   api.MAC
	found bool
	at    time.Time
}

// use notes that pods get addresses of these pools.
func (p *prober) use(pools []pool.Pool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inUse == nil {
		p.inUse = map[string]time.Time{}
	}
	for _, q := range pools {
		p.inUse[q.Name] = time.Now()
	}
	p.more.Notify()
}

// free reports whether an address was recently found not in use. Such an answer is used once: after that, the pod that
// gets the address answers for it. That an address was in use is not remembered: a pod of another node may have
// released it since.
func (p *prober) free(w vlanAddr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, ok := p.answers[w]
	delete(p.answers, w)
	return ok && !a.found && time.Since(a.at) < p.maxAge
}

// fresh reports whether there is an answer that stays valid until candidates are probed again.
func (p *prober) fresh(w vlanAddr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, ok := p.answers[w]
	return ok && time.Since(a.at) < p.maxAge-p.every
}

// probe sends probes for addresses in one VLAN.
func (p *prober) probe(ctx context.Context, vlan uint16, addrs []netip.Addr) (map[vlanAddr]answer, error) {
	used, err := wire.Probe(ctx, wire.ProbeRequest{NIC: p.board.Load().NIC, VLAN: vlan, Addrs: addrs, Timeout: p.timeout})
	if err != nil {
		return nil, err
	}
	answers := map[vlanAddr]answer{}
	for _, addr := range addrs {
		mac, found := used[addr]
		answers[vlanAddr{vlan, addr}] = answer{mac, found, time.Now()}
	}
	return answers, nil
}

// remember keeps answers, and drops those that are too old.
func (p *prober) remember(answers map[vlanAddr]answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w, a := range p.answers {
		if time.Since(a.at) < p.maxAge {
			if _, newer := answers[w]; !newer {
				answers[w] = a
			}
		}
	}
	p.answers = answers
}

// probe implements allocator.Probe. Where the underlay is not probed, the node still checks its own pods and
// interfaces.
func (p *Addresses) probe(ctx context.Context, a allocator.Address) (who api.MAC, found bool, err error) {
	if ctx.Value(unprobed{}) != nil {
		return who, false, nil
	}
	if err := p.usedHere(a); err != nil {
		return who, false, err
	}
	found, err = p.nodes(a.Prefix.Addr())
	if err != nil {
		return who, false, err
	}
	if found {
		addConflict(ctx, conflict{Address: a, node: p.NodeName})
		return p.nicMAC(), true, nil
	}
	w := vlanAddr{a.VLAN, a.Prefix.Addr()}
	if p.prober.timeout == 0 || p.prober.free(w) {
		return who, false, nil
	}
	p.Metrics.Pools.Probes.WithLabelValues("add").Inc()
	answers, err := p.prober.probe(ctx, w.vlan, []netip.Addr{w.addr})
	if err != nil {
		return who, false, err
	}
	if answers[w].found {
		addConflict(ctx, conflict{Address: a, who: answers[w].who})
	}
	return answers[w].who, answers[w].found, nil
}

// usedHere returns an error if a pod of this node has the address: its allocation was lost, and is being restored.
// Probing cannot find this pod: its answer would not arrive on the NIC.
func (p *Addresses) usedHere(a allocator.Address) error {
	known, err := p.Registry.Records()
	if err != nil {
		return err
	}
	if host := known.Holder([]netip.Prefix{a.Prefix}, "", p.Registry.BootID); host != "" {
		p.reconciler.trigger()
		return fmt.Errorf("pod %s of this node has the address %s, and its allocation was lost: it is being restored",
			known.Pods[host].Pod(), a.Prefix.Addr())
	}
	return nil
}

// nodes reports whether an address is on one of this node's interfaces. Probing cannot find it: the node does not
// receive its own frames. Its Node need not list the address: a virtual one moves from node to node.
func (p *Addresses) nodes(addr netip.Addr) (bool, error) {
	addrs, err := link.NodeAddrs(p.Config.HostGateway)
	return slices.Contains(addrs, addr), err
}

// nicMAC is the NIC's MAC; zero without a NIC.
func (p *Addresses) nicMAC() (mac api.MAC) {
	if nic, err := net.InterfaceByName(p.Board.Load().NIC); err == nil {
		copy(mac[:], nic.HardwareAddr)
	}
	return mac
}

// RunProber probes candidates until ctx ends: at intervals, and after an ADD.
func (p *Addresses) RunProber(ctx context.Context) {
	signal.Loop(ctx, p.Intervals.Probe, p.prober.more, p.probeAhead)
}

func (p *Addresses) probeAhead(ctx context.Context) {
	byVLAN := map[uint16][]netip.Addr{}
	for _, q := range p.prober.pools() {
		for _, a := range p.allocator.Upcoming(q, probeAhead) {
			if !p.prober.fresh(vlanAddr{a.VLAN, a.Prefix.Addr()}) {
				byVLAN[a.VLAN] = append(byVLAN[a.VLAN], a.Prefix.Addr())
			}
		}
	}
	for vlan, addrs := range byVLAN {
		answers, err := p.prober.probe(ctx, vlan, addrs)
		if err != nil {
			p.Log.V(1).Info("probing addresses in advance failed", "reason", err.Error())
			continue
		}
		p.prober.remember(answers)
		p.Metrics.Pools.Probes.WithLabelValues("ahead").Add(float64(len(addrs)))
	}
}

// pools are the current versions of the pools in use.
func (p *prober) pools() (out []pool.Pool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.source.Snapshot().IPPools
	for name, last := range p.inUse {
		if time.Since(last) > probeUsed {
			delete(p.inUse, name)
		} else if q, err := pool.Read(all[name]); err == nil { // it may have been deleted, or not been seen yet
			out = append(out, q)
		}
	}
	return out
}

// conflict is an address that another host on the underlay uses, or, if node is set, this node.
type conflict struct {
	allocator.Address
	who  api.MAC
	node string
}

func (c conflict) String() string {
	if c.node != "" {
		return fmt.Sprintf("address %s of IPPool %s is on one of node %s's own interfaces: it is skipped. Remove it there, "+
			"or add it to the pool's spec.excludes", c.Prefix.Addr(), c.Pool, c.node)
	}
	vlan := "untagged"
	if c.VLAN != 0 {
		vlan = fmt.Sprintf("in VLAN %d", c.VLAN)
	}
	return fmt.Sprintf("address %s of IPPool %s is used by another host on the underlay (MAC %s, %s): it is skipped. Find the "+
		"device, or add the address to the pool's spec.excludes", c.Prefix.Addr(), c.Pool, c.who, vlan)
}

// conflicts collects the conflicts found while one pod's addresses are allocated.
type conflicts struct {
	mu    sync.Mutex
	found []conflict
}

type conflictsKey struct{}

func (c *conflicts) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, conflictsKey{}, c)
}

// addConflict adds to the conflicts in ctx.
func addConflict(ctx context.Context, found conflict) {
	if c, ok := ctx.Value(conflictsKey{}).(*conflicts); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.found = append(c.found, found)
	}
}

func (c *conflicts) all() []conflict {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.found)
}
