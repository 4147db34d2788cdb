package tables

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/test/flowtest"
)

// A single frame with the node's MAC that leaves by the uplink would make the underlay's switches learn the wrong port.
// So only a flow that has matched a bridged pod's port and its MAC as source may lead to the uplink, and no flow on the
// way sets another source.
func TestOnlyBridgedPodsLeaveByTheUplink(t *testing.T) {
	for _, file := range goldenFiles(t) {
		_, v := readGolden(t, file)
		out := 0
		for _, f := range Pipeline(v) {
			checkSource(t, file, v, f)
			_, writes := written(f, "eth_src")
			others := f.Match.Source != openflow.FromBridged || writes
			if to, ok := action[openflow.Goto](f); ok && to == openflow.TableOutput && others {
				t.Errorf("%s: leads others to the uplink: %s", file, f)
			}
			if port, ok := action[openflow.Output](f); ok && v.Uplink != 0 && uint32(port) == v.Uplink {
				if out++; f.Table != openflow.TableOutput || others {
					t.Errorf("%s: leads others to the uplink: %s", file, f)
				}
			}
		}
		if n := len(v.segments()); v.Uplink != 0 && out != n {
			t.Errorf("%s: %d flows to the uplink, want one for each of the %d segments", file, out, n)
		}
	}
}

// checkSource fails if f marks packets as a bridged pod's that are not guaranteed to be its own.
func checkSource(t *testing.T, file string, v View, f Flow) {
	t.Helper()
	if source, ok := written(f, "reg0"); !ok || source != fmt.Sprintf("%#x", openflow.FromBridged) {
		return
	}
	_, writes := written(f, "eth_src")
	pod := slices.IndexFunc(v.Pods, func(p Pod) bool { return p.Port == f.Match.InPort && p.MAC == f.Match.EthSrc })
	if f.Table != openflow.TableClassify || pod < 0 || !v.Pods[pod].Bridged || writes {
		t.Errorf("%s: not every frame of this is a bridged pod's own: %s", file, f)
	}
}

// action returns the first action of one type.
func action[T Action](f Flow) (T, bool) {
	for _, a := range f.Actions {
		if a, ok := a.(T); ok {
			return a, true
		}
	}
	var none T
	return none, false
}

// written returns what the flow writes to a field.
func written(f Flow, field string) (string, bool) {
	for _, a := range f.Actions {
		if value, ok := strings.CutSuffix(a.String(), "->"+field); ok {
			return strings.TrimPrefix(value, "set_field:"), true
		}
	}
	return "", false
}

// Megaflows of bridged pods: one for a pair of pods, one for a whole route, and from the underlay one for each pod.
func TestBridgedMegaflowsAreWide(t *testing.T) {
	o := flowtest.Node(t)
	trackPrefixes(o)
	_, view := readGolden(t, "testdata/bridged-encap.txtar")
	flowtest.Sync(t, flowtest.Dial(t, o, openflow.Dial), Pipeline(view))
	const tcpV = fromV + ",tcp,nw_src=192.168.110.112,nw_ttl=64,tcp_src=40000,tcp_dst=80,nw_dst="
	const tcp6V = fromV + ",tcp6,ipv6_src=fd77:0:0:a10::112,nw_ttl=64,tcp_src=40000,tcp_dst=80,ipv6_dst="
	const tcp = "tcp,nw_src=203.0.113.9,nw_ttl=9,tcp_src=40000,tcp_dst=80,nw_dst="
	for _, c := range []megaflowCase{
		{"pod to pod", tcpV + "192.168.111.113", "nw_dst=192.168.111.113,", "nw_ttl="},
		{"pod to pod v6", tcp6V + "fd77:0:0:b10::113", "ipv6_dst=fd77:0:0:b10::113,", "nw_ttl="},
		{"pod to Service", tcpV + "10.96.3.10", "nw_dst=10.96.0.0/12,", "nw_ttl="},
		{"pod to outside", tcpV + "203.0.113.9", "nw_dst=200.0.0.0/5,", "dl_dst="},
		{"pod to outside, any protocol", tcpV + "203.0.113.9", ",ip,", "dl_dst="},
		{"pod to outside v6", tcp6V + "2001:db8::9", "ipv6_dst=::/", "dl_dst="},
		{"underlay to pod", wire(macV, ",dl_vlan=10,"+tcp+"192.168.110.112"), "dl_dst=" + macV + ",", "nw_dst="},
		{"underlay to pod, sender", wire(macV, ",dl_vlan=10,"+tcp+"192.168.110.112"), "dl_vlan=10,", "nw_src="},
		{"underlay to pod, sender's MAC", wire(macV, ",dl_vlan=10,"+tcp+"192.168.110.112"), "dl_vlan=10,", "dl_src="},
		{"host to pod", fromGW + "," + tcp + "192.168.110.112", "nw_dst=192.168.110.112,", "nw_src="},
	} {
		checkMegaflow(t, o, c)
	}
}

// With the uplink's bridge behind it, a packet still visits at most four tables and is never recirculated, in either
// direction.
func TestTablesWithUplinkBridge(t *testing.T) {
	o := flowtest.Node(t)
	o.Ctl("add-br", "br-uplink", "--", "set", "Bridge", "br-uplink", "datapath_type=dummy", "fail_mode=standalone",
		"--", "add-port", "br-uplink", "nic", "--", "set", "Interface", "nic", "type=dummy", "ofport_request=1",
		"--", "add-port", "br-uplink", "up1", "--", "set", "Interface", "up1", "type=patch", "options:peer=up0",
		"--", "add-port", "br-int", "up0", "--", "set", "Interface", "up0", "type=patch", "options:peer=up1")
	_, view := readGolden(t, "testdata/bridged-encap.txtar")
	view.Uplink = o.OFPort("up0")
	flowtest.Sync(t, flowtest.Dial(t, o, openflow.Dial), Pipeline(view))
	for _, c := range []struct{ bridge, packet, has string }{
		{"br-int", fromV + v4 + ",nw_dst=203.0.113.9", "push_vlan(vid=10,"},
		{"br-int", fromU + u4 + ",nw_dst=203.0.113.9", ""},
		{"br-int", fromV + arpV + ",arp_op=1,arp_tpa=192.168.110.1", "push_vlan(vid=10,"},
		{"br-uplink", "in_port=1,dl_src=" + macR + ",dl_dst=" + macV + ",dl_vlan=10,ip,nw_dst=192.168.110.112", "pop_vlan"},
		{"br-uplink", "in_port=1,dl_src=" + macR + ",dl_dst=" + macU + ",ip,nw_dst=192.168.77.110", ""},
	} {
		report := o.Trace(c.bridge, c.packet)
		_, actions, _ := strings.Cut(report, "Datapath actions: ")
		tables := 0
		for line := range strings.Lines(report) {
			if traceTable.MatchString(strings.TrimSpace(line)) {
				tables++
			}
		}
		if tables == 0 || tables > 4 || strings.Contains(report, "recirc(") || !strings.Contains(actions, c.has) || actions == "drop\n" {
			t.Errorf("%s: %d tables, want at most 4, actions with %q\n%s", c.packet, tables, c.has, report)
		}
	}
}

// The number of bridged pods does not affect the time per packet: flows grow linearly with the pods, not quadratically.
func TestFlowsGrowWithPods(t *testing.T) {
	count := func(pods int) int {
		v := View{Gateway: Gateway{Port: 2, MAC: flowtest.MAC(t, macGW)}, Uplink: 5, NodeAddrs: flowtest.Addrs("192.168.77.1")}
		for i := range pods {
			v.Pods = append(v.Pods, Pod{Port: uint32(100 + i), MAC: flowtest.MAC(t, fmt.Sprintf("0a:00:00:00:01:%02x", i)),
				Addrs: flowtest.Addrs(fmt.Sprintf("192.168.110.%d,fd77::%x", i+1, i+1)), Bridged: true, VLAN: uint16(i % 3)})
		}
		return len(Pipeline(v))
	}
	if perPod := (count(200) - count(100)) / 100; perPod > 35 {
		t.Errorf("%d flows for each dual-stack pod", perPod)
	}
}
