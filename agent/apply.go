package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"reflect"
	"slices"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/route"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/openflow"
)

// outcome is what went wrong in a round, by what it harms.
type outcome struct {
	pods error // OVSDB and flows: no pod can be added
	host error // gateway and iptables: pods do not reach the node or the outside
	// away: Open vSwitch does not run, or can't do anything.
	away  bool
	peers error // pods of other nodes are not reached, or not from this node itself
}

// apply calls each applier. One that fails does not stop the next: as much as
// possible works. The requests are answered as soon as what pods depend on is
// in place.
func (l *loop) apply(ctx context.Context, d Desired, waiting []request) (o outcome) {
	settled := l.settled && l.flows != nil
	l.settled = false
	if err := l.applyOVSDB(ctx, d, settled); err != nil {
		return l.failed(waiting, err)
	}
	// Flows of new pods can go ahead of their ports, whose numbers are known.
	ahead := settled && !l.full && len(newPorts(waiting)) > 0
	if err := l.waitGateway(ctx, d); err != nil {
		return l.failed(waiting, err)
	}
	if !ahead {
		l.waitPorts(ctx, waiting)
	}
	o.peers = l.waitTunnel(ctx, d)
	if l.flows == nil {
		// ovs-vswitchd may have made every device anew.
		l.full = true
	}
	// Before the flows: a new pod's first frame finds its way, and no frame for one that is gone comes to the next.
	if err := l.know(d); err != nil {
		o.peers = errors.Join(o.peers, err)
		waiting = refuseBridged(waiting, err)
	}
	o.pods = l.applyFlows(ctx, d, settled)
	if o.pods == nil && ahead {
		o.pods = l.catchUp(ctx, d, waiting)
	}
	if o.pods == nil {
		o.pods = l.letGo(ctx)
	}
	if o.pods == nil {
		// Ports are given up after their flows: a number that is given to the next
		// pod must have no flow of the last one.
		if err := l.db.Prune(ctx, d.OVSDB, takenOff(waiting)...); err != nil {
			o.pods = fmt.Errorf("OVSDB: %w", err)
		}
	}
	l.answer(waiting, o.pods)
	if l.flows == nil {
		o.away = true // and the gateway with it; without it the rest serves nobody
		return o
	}
	if o.pods == nil {
		l.applied.OVSDB, l.settled = d.OVSDB, true
	}
	l.applyHost(d, settled, &o)
	l.full = l.full && o != outcome{}
	return o
}

// takenOff are the ports of the attachments that requests take off: nobody asks again for one whose record somebody
// removed at that moment.
func takenOff(waiting []request) (ports []string) {
	for _, r := range waiting {
		if r.add == nil {
			ports = append(ports, link.HostName(r.del.containerID, r.del.ifName))
		}
	}
	return ports
}

// know tells the uplink's programs of the bridged pods, if there are others now.
func (l *loop) know(d Desired) error {
	if !l.full && slices.Equal(l.applied.Steer, d.Steer) {
		return nil
	}
	if err := l.uplink.know(d.Steer); err != nil {
		return err
	}
	l.applied.Steer = d.Steer
	return nil
}

// refuseBridged answers the ADDs of bridged pods, and returns the other requests.
func refuseBridged(waiting []request, err error) []request {
	return slices.DeleteFunc(waiting, func(r request) bool {
		refuse := r.add != nil && r.add.Bridged
		if refuse {
			r.done <- err
		}
		return refuse
	})
}

// waitGateway waits until the gateway has its port number.
func (l *loop) waitGateway(ctx context.Context, d Desired) error {
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	return l.db.WaitOFPorts(ctx, d.OVSDB.Gateway.Name)
}

// waitPorts waits until the new pods have port numbers. A pod whose port gets none
// fails alone, in answer.
func (l *loop) waitPorts(ctx context.Context, waiting []request) {
	ports := newPorts(waiting)
	if len(ports) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	if err := l.db.WaitOFPorts(ctx, ports...); err != nil {
		l.log.Error(err, "a pod's port has no number")
	}
}

// newPorts are the ports of the attachments that requests add.
func newPorts(waiting []request) (ports []string) {
	for _, r := range waiting {
		if r.add != nil {
			ports = append(ports, r.add.HostIf)
		}
	}
	return ports
}

// catchUp waits for the ports of new pods that have their flows already, and corrects these where a port got another
// number than it asked for.
func (l *loop) catchUp(ctx context.Context, d Desired, waiting []request) error {
	l.waitPorts(ctx, waiting)
	obs, err := l.db.Observe(l.cfg.OVSBridge)
	if err != nil {
		return err
	}
	added := newPorts(waiting)
	other := func(p ovsdb.PodPort) bool {
		return p.OFPort != 0 && p.OFPort != l.counted.numbers[p.HostIf] && slices.Contains(added, p.HostIf)
	}
	if !slices.ContainsFunc(obs.Pods, other) {
		return nil
	}
	return l.applyFlows(ctx, d, true)
}

// waitTunnel waits for the tunnel's port number when the tunnel is new. One that
// ovs-vswitchd can't make (it has no stt, say) is no reason to leave the pods of
// this node without flows; when it gets its number after all, OVSDB tells.
func (l *loop) waitTunnel(ctx context.Context, d Desired) error {
	t := d.OVSDB.Tunnel
	if t == nil {
		return nil
	}
	wait := time.Millisecond
	if l.applied.OVSDB.Tunnel == nil || *l.applied.OVSDB.Tunnel != *t {
		wait = tunnelTimeout
		l.applied.OVSDB.Tunnel = t
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if err := l.db.WaitOFPorts(ctx, t.Name); err != nil {
		return fmt.Errorf("pods of other nodes are not reached: %w", err)
	}
	return nil
}

func (l *loop) applyFlows(ctx context.Context, d Desired, settled bool) error {
	var mended openflow.Changes
	confirmed := false // that the switch has wantFlows, in this round
	if l.flows == nil {
		sw, err := openflow.Dial(ctx, l.mgmt, l.log.WithName("openflow"))
		if err != nil {
			if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("ovs-vswitchd is down: %w", err)
			}
			return fmt.Errorf("ovs-vswitchd does not answer: %w", err)
		}
		l.flows = sw
	} else if l.full && settled {
		var err error
		if mended, err = l.mendFlows(ctx); err != nil {
			return fmt.Errorf("OpenFlow: %w", err)
		}
		confirmed = true
	} else if l.full {
		l.flows.Resync()
	}
	obs, err := l.db.Observe(l.cfg.OVSBridge)
	if err != nil {
		return err
	}
	view, want := d.View(obs), l.wantFlows
	same := l.wantFlows != nil && view.Equal(l.wantView) // flows of thousands of peers are most of what a round computes
	if !same {
		want = openflow.Pipeline(view)
	}
	var changes openflow.Changes
	if !same || !confirmed {
		if changes, err = l.flows.Sync(ctx, want); err != nil {
			return fmt.Errorf("OpenFlow: %w", err)
		}
		l.metrics.flows(len(want), changes)
	}
	l.wantView, l.wantFlows, l.counted = view, want, countedFor(d, obs)
	// The kernel's datapath does not need it.
	if l.full && d.OVSDB.DatapathType == "netdev" && (mended != openflow.Changes{} || changes != openflow.Changes{}) {
		if err := vswitchd.PurgeMegaflows(ctx, l.cfg.OVSRunDir); err != nil {
			l.log.Error(err, "some connections may stay cut off while they send")
		}
	}
	return nil
}

// applyHost puts the gateway, the iptables rules and the routes in place, those
// that changed or, in a full round, all. Other rules come before the routes: a
// packet that takes a direct route before its range is exempt from masquerade
// gives its whole connection another source.
func (l *loop) applyHost(d Desired, settled bool, o *outcome) {
	same := reflect.DeepEqual(l.applied.Gateway, d.Gateway)
	if l.full || !same {
		if err := l.applyGateway(d, settled && same); err != nil {
			o.host = err // routes and rules need it
			return
		}
	}
	o.host = l.applyRules(d.NAT, settled)
	same = reflect.DeepEqual(l.applied.Routes, d.Routes)
	if l.full || !same {
		o.peers = errors.Join(o.peers, l.applyRoutes(d, settled && same))
	}
}

func (l *loop) applyGateway(d Desired, drift bool) error {
	changes, err := link.EnsureGateway(d.Gateway)
	l.told("gateway", drift, changes)
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	v4, v6 := families(d.NAT.PodCIDRs)
	v4, v6 = v4 || d.Gateway.IPv4, v6 || d.Gateway.IPv6
	changes, err = route.EnableForwarding(v4, v6)
	l.told("forwarding", drift, changes)
	if err != nil {
		return fmt.Errorf("forwarding: %w", err)
	}
	changes, err = link.EnsureHosts(hostIfs(d.OVSDB.Pods))
	l.mended("veth", changes) // each was up and in no bridge when it was made
	if err != nil {
		return err
	}
	if l.otherMTU, err = link.HostsWithOtherMTU(l.mtuByHost(d)); err != nil {
		return err
	}
	l.applied.Gateway = d.Gateway
	return nil
}

func (l *loop) applyRoutes(d Desired, drift bool) error {
	changes, err := route.Apply(d.Routes)
	if changes != (route.Changes{}) {
		l.told("routes", drift, []string{fmt.Sprintf("%+v", changes)})
	}
	if err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	l.applied.Routes = d.Routes
	return nil
}

// families reports which IP families are among the prefixes.
func families(prefixes []netip.Prefix) (v4, v6 bool) {
	for _, p := range prefixes {
		v4, v6 = v4 || p.Addr().Is4(), v6 || p.Addr().Is6()
	}
	return v4, v6
}

// mtuByHost are the MTUs that pods get now, by host end.
func (l *loop) mtuByHost(d Desired) map[string]int {
	out := map[string]int{}
	for _, a := range d.OVSDB.Pods {
		out[a.HostIf] = d.PodMTU
		if a.Bridged {
			out[a.HostIf] = underlayMTU(l.cfg, l.transport.MTU)
		}
	}
	return out
}

func hostIfs(pods []api.Attachment) (names []string) {
	for _, p := range pods {
		names = append(names, p.HostIf)
	}
	return names
}
