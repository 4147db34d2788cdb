package crash

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// TestRootAgentKeepsUplink tests the failures of a node whose agent attaches its NIC. The other node is left alone:
// what its streams lose, the machine loses.
func TestRootAgentKeepsUplink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a lab needs root")
	}
	l, err := lab.Up(t.Context(), lab.Options{Dir: filepath.Join(t.TempDir(), "lab"), BinDir: binDir, Nodes: 2,
		Datapath: vswitch.Datapath(ovstest.UnderTest(t)), Mode: underlay.Bridge, Config: []byte("uplink: {rollbackAfter: 2s}")})
	must(t, err)
	t.Cleanup(func() { must(t, lab.Down(context.Background(), l.Dir(), nil)) })
	h, err := l.Host(node)
	must(t, err)
	c := cluster{Lab: l, node: h}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.agentLog(t))
		}
	})
	c.attached(t, true)

	t.Run("gaps", c.gaps)
	t.Run("the node's addresses taken away", c.addressesTaken)
	t.Run("ovs-vswitchd ends and cleans up", c.cleanUp)
	t.Run("journal cannot be written", func(t *testing.T) {
		c.unwritable(t, func() {
			c.exec(t, "ip", "addr", "flush", "dev", "br-uplink")
			c.attached(t, true)
		})
	})
	t.Run("an agent that cannot start", c.cannotStart)
	t.Run("the run directory is full", c.runDirFull)
	t.Run("ovs-vswitchd stays dead", c.staysDead)
	t.Run("ovs-vswitchd leaves, then the agent", c.leave)
	t.Run("ovs-vswitchd hangs", c.vswitchdHangs)
	t.Run("ovs-vswitchd hangs while an agent starts", c.startsBesideHung)
	t.Run("ovs-vswitchd is about to end", c.yields)
	t.Run("restored manually under an agent", c.restoredByHand)
	t.Run("br-uplink changed externally", c.bridgeChanged)
	t.Run("no way through br-uplink", c.noWay)
	t.Run("a gateway that answers broadcasts alone", c.gatewayAnswersBroadcasts)
	t.Run("a gateway that is off", c.gatewayOff)
	t.Run("no gateway", c.noGateway)
	t.Run("not wanted any more", c.notWanted)
}

// attached waits until the node has its address on br-uplink, or on eth0, and reaches the router.
func (c cluster) attached(t *testing.T, want bool) {
	t.Helper()
	c.attachedWithin(t, 30*time.Second, want)
}

func (c cluster) attachedWithin(t *testing.T, limit time.Duration, want bool) {
	t.Helper()
	on, off := "br-uplink", "eth0"
	if !want {
		on, off = off, on
	}
	eventually(t, limit, func() (wrong []string) {
		addrs := c.exec(t, "ip", "-o", "-4", "addr")
		for _, ip := range c.NodeAddrs(1) {
			if ip.Addr().Is4() && !strings.Contains(addrs, on+"    inet "+ip.String()) {
				wrong = append(wrong, fmt.Sprintf("%s has no address %s:\n%s", on, ip, addrs))
			}
		}
		if strings.Contains(addrs, off+" ") {
			wrong = append(wrong, off+" has an address:\n"+addrs)
		}
		if out, err := c.NodeExec(labtest.Within(t, time.Minute), node, "ping", "-c1", "-W1", "192.168.77.1"); err != nil {
			wrong = append(wrong, fmt.Sprintf("the router does not answer: %v %s", err, out))
		}
		return wrong
	})
}

// Addresses that are removed from br-uplink externally are restored.
func (c cluster) addressesTaken(t *testing.T) {
	c.exec(t, "ip", "link", "set", "br-uplink", "down")
	c.attached(t, true)
	c.exec(t, "ip", "addr", "flush", "dev", "br-uplink")
	c.attached(t, true)
	c.exec(t, "ovs-vsctl", "--no-wait", "del-br", "br-uplink")
	c.attached(t, true)
}

// "exit --cleanup" deletes the device with the node's addresses.
func (c cluster) cleanUp(t *testing.T) {
	c.exec(t, "ovs-appctl", "--timeout=10", "exit", "--cleanup")
	eventually(t, 10*time.Second, func() []string {
		if strings.Contains(c.exec(t, "ip", "-br", "link"), "br-uplink") {
			return []string{"br-uplink is still there"}
		}
		if lab.Vswitchd.PID(c.node) != 0 {
			return []string{"ovs-vswitchd still runs"}
		}
		return nil
	})
	must(t, c.OVSStart(labtest.Within(t, time.Minute), node, lab.Vswitchd))
	c.attached(t, true)
}

// While the journal cannot be written, status, /readyz, metrics and doctor report it, with path and reason, and the
// uplink is still repaired: damaged breaks it and waits for the repair.
func (c cluster) unwritable(t *testing.T, damaged func()) {
	agent, dir := filepath.Join(binDir, "fairlead-agent"), "/var/lib/fairlead"
	c.exec(t, "mount", "-t", "tmpfs", "-o", "ro", "none", dir) // emptied as well
	says := func(want bool, argv ...string) {
		t.Helper()
		eventually(t, 30*time.Second, func() []string {
			out, _ := c.NodeExec(labtest.Within(t, time.Minute), node, argv...) // doctor finds it: exit code 1
			all := strings.Contains(out, dir+"/uplink.json") && strings.Contains(out, "read-only file system")
			if all != want {
				return []string{fmt.Sprintf("%v says\n%s", argv, out)}
			}
			return nil
		})
	}
	url := "http://127.0.0.1:10350"
	told := [][]string{{agent, "uplink", "status"}, {"curl", "-s", url + "/readyz"}, {"curl", "-s", url + "/metrics"},
		{filepath.Join(binDir, "fairleadctl"), "doctor", "--node-local"}}
	for _, argv := range told {
		says(true, argv...)
	}
	damaged()
	c.exec(t, "umount", "-l", dir) // the agent has files open there
	for _, argv := range told {
		says(false, argv...)
	}
}

// An agent that exits because it has no inputs first repairs what it finds.
func (c cluster) cannotStart(t *testing.T) {
	conf := "/etc/fairlead/agent.conf"
	must(t, c.AgentKill(labtest.Within(t, time.Minute), node))
	c.exec(t, "ip", "addr", "flush", "dev", "br-uplink")
	c.exec(t, "sh", "-ec", `cp "$0" /run/agent.conf; sed -i /^manifestsDir:/d "$0"; echo "manifestsDir: /nowhere" >>"$0"`, conf)
	must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
	c.attached(t, true)
	eventually(t, 30*time.Second, func() []string {
		if s, err := c.AgentState(labtest.Within(t, time.Minute), node); err != nil || s.PID != 0 {
			return []string{fmt.Sprintf("the agent runs: %+v, %v", s, err)}
		}
		return nil
	})
	c.exec(t, "mv", "/run/agent.conf", conf)
	must(t, c.startAgent(labtest.Within(t, time.Minute)))
	must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
}

// An agent that cannot write why the node is not ready, because the run directory is full, still makes it ready.
func (c cluster) runDirFull(t *testing.T) {
	dir := "/run/fairlead"
	must(t, c.AgentKill(labtest.Within(t, time.Minute), node))
	c.exec(t, "ip", "addr", "flush", "dev", "br-uplink")
	c.exec(t, "mount", "-t", "tmpfs", "-o", "size=4k", "none", dir)
	c.exec(t, "sh", "-c", "echo full >"+dir+"/file") // fills the file system
	must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
	c.attached(t, true)
	must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
	if log := c.agentLog(t); !strings.Contains(log, "writing the reason for the CNI plugin") {
		t.Error("the directory was not full")
	}
	must(t, c.AgentStop(labtest.Within(t, time.Minute), node))
	c.exec(t, "umount", dir)
	must(t, c.startAgent(labtest.Within(t, time.Minute)))
	must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
}

// If ovs-vswitchd does not restart, the host gets its NIC back until it does, even if the agent is restarted.
func (c cluster) staysDead(t *testing.T) {
	must(t, c.OVSKill(labtest.Within(t, time.Minute), node, lab.Vswitchd))
	c.attached(t, false)
	c.says(t, "while Open vSwitch is down")
	must(t, c.AgentStop(labtest.Within(t, time.Minute), node))
	must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
	c.attached(t, false)
	must(t, c.OVSStart(labtest.Within(t, time.Minute), node, lab.Vswitchd))
	c.attached(t, true)
}

// An agent that exits while ovs-vswitchd is dead restores the NIC to the host, without waiting for another
// ovs-vswitchd.
func (c cluster) leave(t *testing.T) {
	must(t, c.OVSKill(labtest.Within(t, time.Minute), node, lab.Vswitchd))
	must(t, c.AgentStop(labtest.Within(t, time.Minute), node))
	c.attachedWithin(t, 5*time.Second, false)
	must(t, c.OVSStart(labtest.Within(t, time.Minute), node, lab.Vswitchd))
	must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
	c.attached(t, true)
}

// On the userspace datapath "uplink yield" restores the NIC to the host before ovs-vswitchd is stopped; the agent
// attaches it again only to a new ovs-vswitchd.
func (c cluster) yields(t *testing.T) {
	out := c.exec(t, filepath.Join(binDir, "fairlead-agent"), "uplink", "yield")
	if c.Datapath() != vswitch.Netdev {
		if !strings.Contains(out, "nothing to do") {
			t.Errorf("on the kernel's datapath: %s", out)
		}
		c.attached(t, true)
		return
	}
	c.attached(t, false)
	time.Sleep(2 * time.Second) // an agent would have attached it by then: it is notified of changes at once
	c.attached(t, false)
	must(t, c.OVSStop(labtest.Within(t, time.Minute), node, lab.Vswitchd))
	must(t, c.OVSStart(labtest.Within(t, time.Minute), node, lab.Vswitchd))
	c.attached(t, true)
}

// An agent does not attach a NIC that was restored externally; the next one attaches it.
func (c cluster) restoredByHand(t *testing.T) {
	c.exec(t, filepath.Join(binDir, "fairlead-agent"), "uplink", "restore")
	c.attached(t, false)
	time.Sleep(2 * time.Second) // an agent would have attached it by then: it is notified of changes at once
	c.attached(t, false)
	c.says(t, "restored manually")
	must(t, c.AgentStop(labtest.Within(t, time.Minute), node))
	must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
	c.attached(t, true)
}

// changed are external changes to br-uplink, and the log lines that report them, each once.
type changed struct {
	by       [][]string
	reported []string
}

// bridgeChanges are of br-uplink, its ports, its flows and around it. On the kernel datapath those of the last kind are
// made together.
func (c cluster) bridgeChanges() []changed {
	f := strings.Fields
	const reverted = `"reverted external change of the uplink"`
	drop, noForward := f("ovs-ofctl add-flow br-uplink priority=9,actions=drop"), f("ovs-ofctl mod-port br-uplink eth0 no-forward")
	down, noReceive := f("ovs-ofctl mod-port br-uplink eth0 down"), f("ovs-ofctl mod-port br-uplink fairlead-up1 no-receive")
	all := []changed{
		{[][]string{f("ovs-ofctl del-flows br-uplink")}, []string{reverted, "flow NORMAL deleted"}},
		// In one transaction, which is reported in one line.
		{[][]string{f("ovs-vsctl --no-wait set port eth0 tag=5 -- set port br-uplink trunks=5,6 " +
			"-- set port fairlead-up1 vlan_mode=access -- set-controller br-uplink tcp:127.0.0.1:9 " +
			"-- --id=@p get port eth0 -- --id=@m create mirror name=m select-all=true output-port=@p " +
			"-- set bridge br-uplink mirrors=@m stp_enable=true fail_mode=secure -- set interface br-uplink type=dummy")},
			[]string{reverted, "port eth0: tag", "port br-uplink: trunks", "port fairlead-up1: vlan_mode", "bridge: controller",
				"bridge: mirrors", "bridge: stp_enable", "bridge: fail_mode", "interface br-uplink: type"}},
		// A change that only its effect reveals: a filter that drops everything.
		{[][]string{f("tc qdisc add dev br-uplink clsact"),
			append(f("tc filter add dev br-uplink ingress bpf da bytecode"), "1,6 0 0 2")},
			[]string{`"recreating the uplink's bridge" err=`}},
	}
	if c.Datapath() == vswitch.System {
		// The agent may revert some before the others are made, and a new bridge reverts some that it has not seen.
		return append(all, changed{by: [][]string{drop, down, noForward, noReceive}})
	}
	return append(all, changed{[][]string{drop}, []string{reverted, "priority=9 actions=drop"}},
		changed{[][]string{down}, []string{reverted}},
		changed{[][]string{noForward}, []string{reverted, "port eth0 set to no-forward"}},
		changed{[][]string{noReceive}, []string{reverted, "port fairlead-up1 set to no-receive"}})
}

// After any external change the node's network recovers without help, and the log reports the change once.
func (c cluster) bridgeChanged(t *testing.T) {
	must(t, c.WaitReady(labtest.Within(t, time.Minute), node)) // an agent need not report what it finds at its start
	for _, x := range c.bridgeChanges() {
		before, began := len(c.agentLog(t)), time.Now()
		for _, argv := range x.by {
			eventually(t, 30*time.Second, func() []string { // the agent may be recreating the bridge for the one before
				out, err := c.NodeExec(labtest.Within(t, time.Minute), node, argv...)
				if err != nil {
					return []string{err.Error(), out}
				}
				return nil
			})
		}
		said := func() (wrong []string) {
			log := c.agentLog(t)[before:]
			for _, text := range x.reported {
				if n := strings.Count(log, text); n != 1 {
					wrong = append(wrong, fmt.Sprintf("reported %d times, not once: %s", n, text))
				}
			}
			return wrong
		}
		eventually(t, 30*time.Second, func() []string { return append(c.bridgeWrong(t, "eth0"), said()...) })
		c.attached(t, true)
		t.Logf("reverted after %s: %q", time.Since(began).Round(10*time.Millisecond), x.by)
		time.Sleep(500 * time.Millisecond) // a second report would come by then
		if wrong := said(); t.Failed() || len(wrong) > 0 {
			t.Fatalf("after %q: %q in\n%s", x.by, wrong, c.agentLog(t)[before:])
		}
	}
}

// bridgeWrong lists how br-uplink, with that port, differs from its desired state. The bridge may not exist.
func (c cluster) bridgeWrong(t *testing.T, port string) (wrong []string) {
	t.Helper()
	for _, look := range []struct {
		argv  string
		right func(out string) bool
	}{
		{"ovs-ofctl --no-stats dump-flows br-uplink", func(out string) bool { return out == "priority=0 actions=NORMAL" }},
		{"ovs-ofctl show br-uplink", func(out string) bool {
			return strings.Contains(out, port) && !strings.Contains(out, "NO_") && !strings.Contains(out, "PORT_DOWN")
		}},
		{"ovs-vsctl --format=csv --no-headings --columns=tag,trunks,vlan_mode list port", func(out string) bool {
			return strings.Trim(out, "[],\n") == ""
		}},
		{"ovs-vsctl --bare --columns=name find bridge name=br-uplink mirrors=[] controller=[] fail_mode=standalone stp_enable=false",
			func(out string) bool { return out == "br-uplink" }},
		{"ovs-vsctl --bare --columns=type list interface br-uplink", func(out string) bool { return out == "internal" }},
	} {
		out, err := c.NodeExec(labtest.Within(t, time.Minute), node, strings.Fields(look.argv)...)
		if err != nil || !look.right(strings.TrimSpace(out)) {
			wrong = append(wrong, fmt.Sprintf("%s: %v\n%s", look.argv, err, out))
		}
	}
	return wrong
}

// router sets the router's interface up or down.
func (c cluster) router(t *testing.T, state string) { c.setLink(t, "router", "eth0", state) }

// plugOther sets the switch's port of node2 up or down.
func (c cluster) plugOther(t *testing.T, state string) { c.setLink(t, "switch", "node2", state) }

func (c cluster) setLink(t *testing.T, host, link, state string) {
	t.Helper()
	out, err := c.NodeExec(labtest.Within(t, time.Minute), host, "ip", "link", "set", link, state)
	if err != nil {
		t.Fatal(err, out)
	}
}

// The kernel probes a gateway that it knows by unicast. A gateway that answers broadcasts only is reachable as well.
func (c cluster) gatewayAnswersBroadcasts(t *testing.T) {
	router := func(argv ...string) string {
		t.Helper()
		out, err := c.NodeExec(labtest.Within(t, time.Minute), "router", argv...)
		if err != nil {
			t.Fatal(err, out)
		}
		return out
	}
	c.says(t, "attached: ") // else the unanswered attach may be the previous one
	index, _, _ := strings.Cut(c.exec(t, "ip", "-o", "link", "show", "dev", "br-uplink"), ":")
	before := strings.Count(c.agentLog(t), "recreating the uplink's bridge")
	router("ip", "-6", "addr", "flush", "dev", "eth0", "scope", "global")
	router("nft", "add table arp foreign; add chain arp foreign c { type filter hook input priority 0; }; "+
		"add rule arp foreign c @ll,0,48 != 0xffffffffffff counter drop")
	unanswered := regexp.MustCompile(`packets (\d+)`)
	eventually(t, 90*time.Second, func() []string {
		rules := router("nft", "list", "table", "arp", "foreign")
		if m := unanswered.FindStringSubmatch(rules); m == nil || len(m[1]) < 2 { // three checks ask nine times at most
			return []string{"the gateway was not asked ten times by unicast:\n" + rules}
		}
		return nil
	})
	router("nft", "delete", "table", "arp", "foreign")
	if after := c.exec(t, "ip", "-o", "link", "show", "dev", "br-uplink"); !strings.HasPrefix(after, index+":") ||
		strings.Count(c.agentLog(t), "recreating the uplink's bridge") != before {
		t.Errorf("br-uplink was recreated, it had the index %s:\n%s", index, after)
	}
}

// A gateway that is temporarily down is no reason to change an attached uplink.
func (c cluster) gatewayOff(t *testing.T) {
	c.says(t, "attached: ")
	before := c.exec(t, "ip", "-o", "link", "show", "dev", "br-uplink")
	told := len(c.agentLog(t)) // other tests may have taken the gateway down
	c.router(t, "down")
	c.plugOther(t, "down") // a node that reaches another one is not cut off
	noticed := func() int {
		return strings.Count(c.agentLog(t)[told:], "no gateway answers, with or without Open vSwitch")
	}
	eventually(t, 60*time.Second, func() []string {
		if noticed() == 0 {
			return []string{"the agent has not noticed"}
		}
		return nil
	})
	out, err := c.NodeExec(labtest.Within(t, 60*time.Second), node, filepath.Join(binDir, "fairleadctl"), "doctor", "--node-local")
	if err == nil || !strings.Contains(out, "cut-off") || !strings.Contains(out, "the default gateway does not answer") {
		t.Errorf("doctor says %v\n%s", err, out)
	}
	c.plugOther(t, "up")
	c.router(t, "up")
	c.attached(t, true)
	index, _, _ := strings.Cut(before, ":")
	if after := c.exec(t, "ip", "-o", "link", "show", "dev", "br-uplink"); !strings.HasPrefix(after, index+":") {
		t.Errorf("br-uplink was recreated for a gateway that was off:\n%s%s", before, after)
	}
	if n := noticed(); n != 1 { // doctor took longer than the interval between checks
		t.Errorf("that no gateway answers is reported %d times, not once", n)
	}
}

// If the gateway answers on the NIC but not through br-uplink, even after the bridge is recreated, the host gets its
// NIC back, and the agent tries again.
func (c cluster) noWay(t *testing.T) {
	c.exec(t, "nft", "add table arp foreign; add chain arp foreign c { type filter hook input priority 0; }; "+
		"add rule arp foreign c iifname br-uplink drop; "+
		"add table ip6 foreign; add chain ip6 foreign c { type filter hook input priority 0; }; "+
		"add rule ip6 foreign c iifname br-uplink drop")
	c.attached(t, false)
	c.says(t, "not through Open vSwitch", "the agent attaches the NIC again after")
	c.exec(t, "nft", "delete table arp foreign; delete table ip6 foreign")
	c.attached(t, true)
}

// If no gateway answers after an attach, it is undone until one does; meanwhile the node's pods without IPPools work.
func (c cluster) noGateway(t *testing.T) {
	c.exec(t, filepath.Join(binDir, "fairlead-agent"), "uplink", "restore")
	must(t, c.AgentStop(labtest.Within(t, time.Minute), node))
	c.router(t, "down")
	must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
	must(t, c.WaitReady(labtest.Within(t, 60*time.Second), node))
	c.says(t, "is not reachable through br-uplink", "the agent attaches the NIC again after")
	must(t, c.AgentStop(labtest.Within(t, time.Minute), node))
	must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
	must(t, c.WaitReady(labtest.Within(t, 60*time.Second), node))
	c.router(t, "up")
	c.attached(t, true)
}

// An agent with bridging disabled restores the NIC that its predecessor attached.
func (c cluster) notWanted(t *testing.T) {
	must(t, c.AgentStop(labtest.Within(t, time.Minute), node))
	c.exec(t, "sed", "-i", "s/enableBridgingMode: true/enableBridgingMode: false/", "/etc/fairlead/agent.conf")
	must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
	must(t, c.WaitReady(labtest.Within(t, 60*time.Second), node))
	c.attached(t, false)
}
