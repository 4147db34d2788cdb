package alarms

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// notReadyAfter is the time without heartbeats after which a Node becomes not ready: 40 s to 50 s by
// kube-controller-manager's default.
const notReadyAfter = 45 * time.Second

// event is something that happens to a node and is no path fault. It returns when the node is as before.
type event struct {
	name string
	do   func(e happening) error
}

// happening is an event at one node.
type happening struct {
	*cluster
	context.Context
	node string
	dice *rand.Rand
	// short makes everything last a tenth as long, for a run of the suite.
	short bool
}

// between is a random time.
func (e happening) between(least, most time.Duration) time.Duration {
	if e.short {
		least, most = least/10, most/10
	}
	return least + time.Duration(e.dice.Int64N(int64(most-least)))
}

func (e happening) wait(d time.Duration) error {
	select {
	case <-e.Done():
		return e.Err()
	case <-time.After(d):
		return nil
	}
}

// events returns all kinds of events.
func events() []event {
	return []event{
		{"the agent is killed", func(e happening) error { return e.agentAway(e.AgentKill, 0, 3*time.Second) }},
		{"the agent is away for long", func(e happening) error { return e.agentAway(e.AgentKill, 5*time.Second, 2*time.Minute) }},
		{"the agent is replaced", func(e happening) error { return e.agentAway(e.AgentStop, 0, 10*time.Second) }},
		{"the agent hangs", happening.hangs},
		{"ovs-vswitchd dies", func(e happening) error { return e.ovs(lab.Vswitchd) }},
		{"Open vSwitch dies", func(e happening) error { return e.ovs() }},
		{"Open vSwitch and the agent die", happening.allDies},
		{"a reboot", func(e happening) error { return e.down(time.Second, 20*time.Second) }},
		{"a node is off for long", func(e happening) error { return e.down(20*time.Second, 3*time.Minute) }},
		{"a drain", happening.drain},
		{"no heartbeat", happening.noHeartbeat},
		{"the Node is deleted and registered again", happening.registersAgain},
		{"the node is removed and added", happening.removed},
	}
}

// agentAway ends the agent, and starts another later.
func (e happening) agentAway(end func(context.Context, string) error, least, most time.Duration) error {
	if err := end(e, e.node); err != nil {
		return err
	}
	if err := e.wait(e.between(least, most)); err != nil {
		return err
	}
	return e.start()
}

// start starts the agent and waits until it is ready.
func (e happening) start() error {
	if err := e.AgentStart(e, e.node); err != nil {
		return err
	}
	return e.WaitReady(e, e.node)
}

func (e happening) hangs() error {
	s, err := e.AgentState(e, e.node)
	if err != nil || s.PID == 0 {
		return err
	}
	if err := unix.Kill(s.PID, unix.SIGSTOP); err != nil {
		return err
	}
	defer unix.Kill(s.PID, unix.SIGCONT)
	return e.wait(e.between(3*time.Second, 90*time.Second))
}

// ovs is the death of daemons of Open vSwitch, which are started again as by systemd.
func (e happening) ovs(which ...lab.Daemon) error {
	if err := e.OVSKill(e, e.node, which...); err != nil {
		return err
	}
	if err := e.wait(e.between(0, 2*time.Second)); err != nil {
		return err
	}
	if err := e.OVSStart(e, e.node); err != nil {
		return err
	}
	return e.WaitReady(e, e.node)
}

func (e happening) allDies() error {
	if err := e.AgentKill(e, e.node); err != nil {
		return err
	}
	if err := e.OVSKill(e, e.node); err != nil {
		return err
	}
	if err := e.wait(e.between(0, 5*time.Second)); err != nil {
		return err
	}
	if err := e.OVSStart(e, e.node); err != nil {
		return err
	}
	if err := e.wait(e.between(0, 10*time.Second)); err != nil {
		return err
	}
	return e.start()
}

// down is a power failure: for a time nothing of the node is on the wire; then it boots, and its agent starts within
// the two minutes that docs/reachability.md allows.
func (e happening) down(least, most time.Duration) error {
	off, boot := e.between(least, most), e.between(0, 60*time.Second)
	if off > notReadyAfter/2 { // else it would be silent for longer while its Node is ready
		off = max(off, notReadyAfter)
	}
	if err := e.AgentKill(e, e.node); err != nil { // it must not notice that its NIC is unplugged
		return err
	}
	port := e.node
	if _, err := e.NodeExec(e, underlay.Hub, "ip", "link", "set", port, "down"); err != nil {
		return err
	}
	if err := e.silentFor(off); err != nil {
		return err
	}
	if err := e.Reboot(e, e.node); err != nil {
		return err
	}
	if err := e.wait(boot); err != nil {
		return err
	}
	if err := e.start(); err != nil {
		return err
	}
	return e.ready(corev1.ConditionTrue)
}

// silentFor waits as if the kubelet sent no heartbeats: after notReadyAfter the Node is not ready.
func (e happening) silentFor(d time.Duration) error {
	if d < notReadyAfter {
		return e.wait(d)
	}
	if err := e.wait(notReadyAfter); err != nil {
		return err
	}
	if err := e.ready(corev1.ConditionUnknown); err != nil {
		return err
	}
	return e.wait(d - notReadyAfter)
}

// ready sets the Node's condition Ready.
func (e happening) ready(is corev1.ConditionStatus) error {
	return e.change(e.node, func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: is}}
	})
}

// drain cordons the node, which is then down for maintenance, without its agent or as a whole.
func (e happening) drain() error {
	cordon := func(is bool) error {
		return e.change(e.node, func(n *corev1.Node) { n.Spec.Unschedulable = is })
	}
	if err := cordon(true); err != nil {
		return err
	}
	var err error
	if e.dice.IntN(2) == 0 {
		err = e.agentAway(e.AgentStop, 10*time.Second, 3*time.Minute)
	} else {
		err = e.down(10*time.Second, 90*time.Second)
	}
	if err != nil {
		return err
	}
	return cordon(false)
}

// noHeartbeat: the Node is not ready, but everything on it runs.
func (e happening) noHeartbeat() error {
	if err := e.ready(corev1.ConditionUnknown); err != nil {
		return err
	}
	if err := e.wait(e.between(5*time.Second, 90*time.Second)); err != nil {
		return err
	}
	return e.ready(corev1.ConditionTrue)
}

// registersAgain: the Node is deleted while its kubelet runs, which creates it again. Its agent's Pod may run that
// long.
func (e happening) registersAgain() error {
	node, err := e.remove(e.node)
	if err != nil {
		return err
	}
	werr := e.wait(e.between(time.Second, time.Minute))
	if err := e.add(node); err != nil {
		return err
	}
	return werr
}

// removed: the node leaves the cluster and returns, with its former podCIDRs or others.
func (e happening) removed() error {
	node, err := e.remove(e.node)
	if err != nil {
		return err
	}
	if err := e.wait(e.between(0, time.Minute)); err != nil { // the Pods of a deleted Node are removed later
		return err
	}
	if err := e.AgentStop(e, e.node); err != nil {
		return err
	}
	if err := e.wait(e.between(0, 90*time.Second)); err != nil {
		return err
	}
	if e.dice.IntN(2) == 0 {
		if err := otherRanges(node); err != nil {
			return err
		}
	}
	if err := e.add(node); err != nil {
		return err
	}
	if err := e.wait(e.between(0, 20*time.Second)); err != nil {
		return err
	}
	return e.start()
}

// otherRanges moves the Node's ranges by 128 subnets, to ones that no node of the lab has had, or back again.
func otherRanges(n *corev1.Node) error {
	for i, text := range n.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return err
		}
		a := p.Addr().AsSlice()
		at := p.Bits()/8 - 1
		a[at] ^= 0x80
		moved, ok := netip.AddrFromSlice(a)
		if !ok {
			return fmt.Errorf("no address: %v", a)
		}
		n.Spec.PodCIDRs[i] = netip.PrefixFrom(moved, p.Bits()).String()
	}
	n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	return nil
}
