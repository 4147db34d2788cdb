package kube

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

// The userspace datapath cannot use a tunnel whose egress interface is not Open vSwitch's. The node's agent reports
// this in Events, metric and log, and to doctor and status; nothing suggests that the tunnel works.
func TestRootTunnelThatCannotWork(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "c@node2")
	b.ping(t, "a", "c", 20*time.Second)
	fairleadctl := b.agentPod(t)
	ctx := labtest.Within(t, 3*time.Minute)
	t.Cleanup(func() { // starting Open vSwitch restores its bridge with the node's addresses
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, err := b.NodeExec(ctx, "node1", "ip", "link", "del", "mv0")
		must(t, err)
		must(t, b.OVSStop(ctx, "node1"))
		must(t, b.OVSStart(ctx, "node1"))
		must(t, b.WaitReady(ctx, "node1"))
	})
	// The addresses move from br-phy to a device on it, which has its MAC.
	_, err := b.NodeExec(ctx, "node1", "sh", "-ec", `
		ip link add link br-phy name mv0 type macvlan mode passthru
		gateways=$(ip -o route show default dev br-phy; ip -6 -o route show default dev br-phy)
		for a in $(ip -o addr show dev br-phy scope global | awk '{print $4}'); do
			ip addr del $a dev br-phy
			ip addr add $a dev mv0 nodad
		done
		ip link set mv0 up
		echo "$gateways" | while read -r _ via gateway _; do ip route replace default $via $gateway dev mv0; done`)
	must(t, err)
	b.event(t, "node1", "TunnelUnusable", "pods of other nodes are not reached", "this node's address is on mv0", "noEncap")
	// The probes find the same, and the agent of a Node without a tunnel reports it on that Node, not on the other one.
	// The other one's agent writes the same Event once it has received nothing for some time.
	b.event(t, "node1", "PodsNotReached", "this node's address is on mv0")
	for _, c := range []struct {
		code  int
		words []string
		args  []string
	}{
		{4, []string{"agent: no-tunnel", "pods of other nodes are not reached", "mtu       check failed: no packets go through"}, []string{"doctor"}},
		{0, []string{"agent         degraded: pods of other nodes are not reached"}, []string{"status"}},
	} {
		wait(t, time.Minute, func() string {
			out, code := fairleadctl(c.args...)
			for _, w := range c.words {
				if code != c.code || !strings.Contains(out, w) {
					return fmt.Sprintf("%q: exit code %d, want %d and %q:\n%s", c.args, code, c.code, w, out)
				}
			}
			return ""
		})
	}
	b.measures(t, "node1", "fairlead_tunnel_unusable 1")
	if log := b.log(t, "node1"); !strings.Contains(log, "this node's address is on mv0") {
		t.Error("the log does not say it")
	}
	// The tunnel indeed does not work.
	if _, err := b.PodExec(ctx, "default/a", "ping", "-c2", "-W1", b.pod(t, "c").ips[0].String()); err == nil {
		t.Error("the tunnel works")
	}
}
