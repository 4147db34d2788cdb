package crash

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/crash/nodestate"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

// faults are all faults of node1, at any time, in any number.
func (c cluster) faults(r *rand.Rand) []fault {
	type do = func(t *testing.T)
	signal := func(d lab.Daemon, sig unix.Signal) do {
		return func(*testing.T) {
			if pid := d.PID(c.node); pid != 0 {
				unix.Kill(pid, sig) // it may have exited
			}
		}
	}
	// gone waits until a stopped daemon has exited before the next is started: one that hangs would exit only when it
	// continues.
	gone := func(d lab.Daemon) do {
		return func(t *testing.T) { must(t, c.OVSKill(labtest.Within(t, time.Minute), node, d)) }
	}
	// shell may fail: another fault may have removed what it changes.
	shell := func(script string) do {
		return func(t *testing.T) {
			port, n := "", r.IntN(1<<20) // the sequence of random numbers does not depend on the ports
			if s, err := nodestate.Veths(c.node); err == nil && len(s) > 0 {
				port = s[n%len(s)]
			}
			if err := run(c.node.Start, node, []string{"timeout", "10", "sh", "-c", script, "sh", port}); err != nil {
				t.Logf("  %v", err)
			}
		}
	}
	return []fault{
		{name: "agent killed", begin: func(t *testing.T) { must(t, c.AgentKill(labtest.Within(t, time.Minute), node)) }},
		{name: "agent stopped", begin: func(t *testing.T) { must(t, c.AgentStop(labtest.Within(t, time.Minute), node)) }},
		{name: "ovs-vswitchd killed", begin: signal(lab.Vswitchd, unix.SIGKILL), end: gone(lab.Vswitchd)},
		{name: "ovs-vswitchd stopped", begin: signal(lab.Vswitchd, unix.SIGTERM), end: gone(lab.Vswitchd)},
		{name: "ovs-vswitchd hangs", begin: signal(lab.Vswitchd, unix.SIGSTOP)},
		{name: "ovs-vswitchd cleans up", begin: shell("ovs-appctl -T 2 exit --cleanup"),
			end: gone(lab.Vswitchd)},
		{name: "ovsdb-server killed", begin: signal(lab.OVSDB, unix.SIGKILL), end: gone(lab.OVSDB)},
		{name: "ovsdb-server stopped", begin: signal(lab.OVSDB, unix.SIGTERM), end: gone(lab.OVSDB)},
		{name: "ovsdb-server hangs", begin: signal(lab.OVSDB, unix.SIGSTOP)},
		{name: "guard killed", begin: signal(lab.Guard, unix.SIGKILL), end: gone(lab.Guard)},
		{name: "database lost", begin: func(t *testing.T) {
			signal(lab.OVSDB, unix.SIGKILL)(t)
			os.Remove(c.node.Private("/etc/openvswitch/conf.db")) // it may not exist
		}, end: gone(lab.OVSDB)},
		{name: "bridge deleted", begin: shell("ovs-vsctl -t 2 --no-wait del-br br-int")},
		{name: "port deleted", begin: shell(`ovs-vsctl -t 2 --no-wait --if-exists del-port "$1"`)},
		{name: "port moved", begin: shell(`ovs-vsctl -t 2 --no-wait --may-exist add-br theirs -- set Bridge theirs datapath_type=` +
			string(c.Datapath()) + ` -- --if-exists del-port br-int "$1" -- add-port theirs "$1"`)},
		{name: "record lost", begin: shell(`ovs-vsctl -t 2 --no-wait clear Port "$1" external_ids`)},
		{name: "flows deleted", begin: shell("ovs-ofctl -t 2 -O OpenFlow15 del-flows br-int")},
		{name: "flows altered", begin: shell("ovs-ofctl -t 2 -O OpenFlow15 mod-flows br-int table=3,actions=drop")},
		{name: "controller set", begin: shell("ovs-vsctl -t 2 --no-wait set-controller br-int tcp:127.0.0.1:9")},
		{name: "gateway bare", begin: shell("ip addr flush dev fairlead-gw0; ip link set fairlead-gw0 down")},
		{name: "routes gone", begin: shell("ip route flush proto 102; ip neigh flush nud permanent")},
		{name: "iptables gone", begin: shell("iptables -w -t nat -F; iptables -w -F; ip6tables -w -t nat -F")},
		{name: "veth down", begin: shell(`ip link set "$1" down`)},
	}
}
