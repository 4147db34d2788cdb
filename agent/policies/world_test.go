package policies

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/clusterip"
	"github.com/fairlead-cni/fairlead/openflow/tables"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
	"github.com/fairlead-cni/fairlead/test/flowtest"
)

const (
	macGW    = "0e:00:00:00:00:01"
	router   = "0c:00:00:00:00:01"
	services = "10.96.0.0/16,fd00:10:96::/112"
)

// testPod is one of the node's pods: routed, or in a segment.
type testPod struct {
	name   string
	port   uint32
	addrs  string
	vlan   int // -1: routed
	labels map[string]string
}

func testPods() []testPod {
	judged, friend := map[string]string{"app": "judged"}, map[string]string{"app": "friend"}
	return []testPod{
		{"a", flowtest.PodA, "10.10.0.3,fd00:10::3", -1, judged}, {"b", flowtest.PodB, "10.10.0.4,fd00:10::4", -1, friend},
		{"u", flowtest.PodU, "192.168.77.110,fd77::110", 0, judged}, {"w", flowtest.PodW, "192.168.77.111,fd77::111", 0, friend},
		{"v", flowtest.PodV, "192.168.110.112,fd77:0:0:a10::112", 10, judged},
		{"x", flowtest.PodX, "192.168.111.113,fd77:0:0:b10::113", 10, friend},
	}
}

func (p testPod) mac() string { return fmt.Sprintf("0a:00:00:00:00:%02x", p.port) }

// world is a node with these pods, and Rules that have them.
type world struct {
	*Rules
	source *feed.Objects
	view   tables.View
	place  NodeState
}

func newWorld(t testing.TB, policies ...policy.Policy) *world {
	w := &world{source: feed.New(), view: tables.View{
		Gateway: tables.Gateway{Port: flowtest.Gateway, MAC: flowtest.MAC(t, macGW),
			Addrs: flowtest.Addrs("10.10.0.1,fd00:10::1"), PodCIDRs: flowtest.Prefixes("10.10.0.0/24,fd00:10::/64")},
		TunnelPort: flowtest.Tunnel, Uplink: flowtest.Uplink,
		Peers: []tables.Peer{{Name: "node-b", Tunnel: netip.MustParseAddr("192.168.77.2"),
			PodCIDRs: flowtest.Prefixes("10.10.1.0/24,fd00:10:0:1::/64")}},
		NodeAddrs: flowtest.Addrs("192.168.77.1"), ViaHost: flowtest.Prefixes(services + ",10.10.0.0/16"),
	}}
	w.Rules = NewRules(w.source)
	w.place = NodeState{Node: w.view.NodeAddrs, Services: true}
	for _, p := range testPods() {
		at := tables.Pod{Port: p.port, MAC: flowtest.MAC(t, p.mac()), Addrs: flowtest.Addrs(p.addrs), Bridged: p.vlan >= 0,
			VLAN: uint16(max(p.vlan, 0))}
		w.view.Pods = append(w.view.Pods, at)
		key := policy.PodKey{Namespace: "shop", Name: p.name}
		w.place.Ports = append(w.place.Ports, Port{Pod: key, HostIf: "fl" + p.name, At: at})
		w.source.Put(feed.Pod, key.String(), &policy.Pod{PodKey: key, Labels: p.labels, Addrs: at.Addrs, Local: true})
	}
	w.source.Put(feed.Namespace, "shop", policy.Namespace{Name: "shop", Labels: map[string]string{"team": "shop"}})
	for _, p := range policies {
		w.source.Put(p.Kind, strings.TrimPrefix(p.Namespace+"/"+p.Name, "/"), p)
	}
	for _, kind := range []string{feed.NetworkPolicy, feed.ClusterNetworkPolicy, feed.Pod, feed.Namespace, feed.Node} {
		w.source.MarkRead(kind)
	}
	return w
}

func (w *world) update() map[uint32]openflow.Unit { return w.Update(&w.place, time.Unix(0, 0)) }

// allFlows are the flows of the rules.
func (w *world) allFlows() (out []openflow.Flow) {
	for _, u := range w.Units() {
		if u.Build != nil {
			u = u.Build()
		}
		out = append(out, u.Flows...)
	}
	return out
}

// base are the node's flows except those of policies.
func (w *world) base() []openflow.Flow {
	shared := clusterip.Flows(w.view, clusterip.Services{CIDRs: flowtest.Prefixes(services)})
	return append(tables.Pipeline(w.view), shared...)
}

func networkPolicy(t testing.TB, name, spec string) policy.Policy {
	p, err := policy.ParseNetworkPolicy([]byte(`{"metadata": {"namespace": "shop", "name": "` + name + `"}, "spec": ` + spec + `}`))
	if err != nil || len(p.Problems) > 0 {
		t.Fatal(err, p.Problems)
	}
	return p
}

// testPacket is a packet in the syntax of ofproto/trace, with its origin and destination.
type testPacket struct {
	text     string
	from, to netip.Addr
	port     uint16
}

// testPackets are the TCP packets that pods and the outside send to each other, where the network carries them.
func testPackets() []testPacket {
	const outside4, outside6, near4, near6 = "203.0.113.9", "2001:db8::9", "10.10.1.9", "fd00:10:0:1::9"
	var out []testPacket
	add := func(sender, from, to string) {
		family, src, dst := "tcp", ",nw_src=", ",nw_dst="
		if strings.Contains(from, ":") {
			family, src, dst = "tcp6", ",ipv6_src=", ",ipv6_dst="
		}
		for _, port := range []uint16{22, 80, 443} {
			out = append(out, testPacket{fmt.Sprintf("%s,%s%s%s%s%s,nw_ttl=64,tcp_src=40000,tcp_dst=%d,tcp_flags=syn", sender, family,
				src, from, dst, to, port), netip.MustParseAddr(from), netip.MustParseAddr(to), port})
		}
	}
	for _, p := range testPods() {
		own := strings.Split(p.addrs, ",")
		sends := fmt.Sprintf("in_port=%d,dl_src=%s,dl_dst=%s", p.port, p.mac(), router)
		for i, far := range [][]string{{outside4, near4, "10.96.7.7"}, {outside6, near6, "fd00:10:96::7"}} {
			for _, to := range far {
				add(sends, own[i], to)
			}
			for _, q := range testPods() {
				if p.port != q.port && p.vlan == q.vlan {
					add(sends, own[i], strings.Split(q.addrs, ",")[i])
				}
			}
		}
		if p.vlan < 0 {
			add("in_port=2,dl_src="+macGW+",dl_dst="+p.mac(), outside4, own[0])
			add("in_port=1,tun_src=192.168.77.2,tun_dst=192.168.77.1,dl_src=0e:00:00:00:00:b1,dl_dst="+macGW, near6, own[1])
			continue
		}
		wire := fmt.Sprintf("in_port=5,dl_src=%s,dl_dst=%s", router, p.mac())
		if p.vlan > 0 {
			wire += fmt.Sprintf(",dl_vlan=%d", p.vlan)
		}
		add(wire, outside4, own[0])
		add("in_port=2,dl_src="+macGW+",dl_dst="+p.mac(), near6, own[1])
	}
	return out
}

// ends reports whether a connection is ended.
func (w *world) ends(zone uint16, c vswitchd.Connection) bool {
	return len(w.End(zone, []vswitchd.Connection{c}, time.Unix(0, 0))) == 1
}

// forbids reports whether the rules of an end deny a packet.
func (w *world) forbids(p testPacket) bool {
	for key, pod := range w.pods {
		for _, at := range pod.ports {
			about := compile.Connection{Pod: key, Protocol: policy.TCP, Port: p.port}
			switch {
			case slices.Contains(at.At.Addrs, p.from):
				about.Direction, about.Peer = policy.Egress, p.to
			case slices.Contains(at.At.Addrs, p.to):
				about.Direction, about.Peer = policy.Ingress, p.from
			default:
				continue
			}
			if d, ok := w.compiler.Judge(about); pod.closed || ok && d.Verdict == policy.Deny {
				return true
			}
		}
	}
	return false
}

// passes reports whether the last datapath actions of a trace are not drop.
func passes(report string) bool {
	return !strings.HasSuffix(strings.TrimSpace(report), "Datapath actions: drop")
}
