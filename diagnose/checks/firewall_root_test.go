package checks

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/nat"
	"github.com/fairlead-cni/fairlead/diagnose/firewall"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/test/nstest"
)

// firewalled is node a, which has tunnels to b and c, and exchanges packets of pods with all others without one.
func firewalled() api.AgentState {
	return api.AgentState{Node: "a", Transport: "eth0",
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("fd00:0:0:1::/64")},
		Peers: []api.AgentPeer{
			{Node: "b", Address: netip.MustParseAddr("192.0.2.2")},
			{Node: "c", Address: netip.MustParseAddr("192.0.2.3")},
			{Node: "d", Routed: []netip.Prefix{netip.MustParsePrefix("10.244.4.0/24"), netip.MustParsePrefix("fd00:0:0:5::/64")}},
			{Node: "e", Routed: []netip.Prefix{netip.MustParsePrefix("10.244.6.0/24")}},
			{Node: "f", Routed: []netip.Prefix{netip.MustParsePrefix("10.244.8.0/24")}},
			{Node: "g", Routed: []netip.Prefix{netip.MustParsePrefix("10.244.7.0/24")}},
		}}
}

// firewallFindings are those of node a with these rules.
func firewallFindings(rules firewall.Ruleset) []report.Finding {
	tunnel, a := nat.TunnelOf(api.TunnelGeneve, 0), firewalled()
	var ofTunnel, ofPods drops
	for _, p := range a.Peers {
		for _, there := range p.Routed {
			own := a.PodCIDRs[0].Addr()
			if there.Addr().Is6() {
				own = a.PodCIDRs[1].Addr()
			}
			in, out := firewall.RoutedPackets("gw0", "eth0", own.Next(), there.Addr().Next(), 6082)
			ofPods.add(rules, p, in, out)
		}
		if p.Address.IsValid() {
			own := netip.MustParseAddr("192.0.2.1")
			in := firewall.Packet{In: "eth0", Src: p.Address, Dst: own, Protocol: tunnel.Protocol, Port: tunnel.Port}
			out := firewall.Packet{Out: "eth0", Src: own, Dst: p.Address, Protocol: tunnel.Protocol, Port: tunnel.Port}
			ofTunnel.add(rules, p, in, out)
		}
	}
	return slices.Concat(ofTunnel.ofTunnel(a, tunnel), ofPods.ofPods(a))
}

// Each rule that drops packets is one finding, with all nodes that it affects, and the commands of the remedies make
// nftables accept the packets.
func TestRootFirewallRemedies(t *testing.T) {
	nstest.Need(t)
	node := nstest.New(t)
	file := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(file, []byte(`table inet filter {
		chain input { type filter hook input priority 0; policy accept; iifname "eth0" udp dport 6081 drop; }
		chain output { type filter hook output priority 0; policy accept; ip daddr 192.0.2.3 udp dport 6081 drop; }
		chain forward { type filter hook forward priority 0; policy accept;
			ip saddr 10.244.4.0-10.244.9.255 drop; ip6 saddr fd00:0:0:1::/64 drop; }
	}`), 0o600); err != nil {
		t.Fatal(err)
	}
	node.Exec("nft", "-f", file)
	found := func() (all []report.Finding) {
		node.Must(func() error {
			rules, err := firewall.Read(t.Context())
			all = firewallFindings(rules)
			return err
		})
		return all
	}
	var got []string
	for _, f := range found() {
		got = append(got, f.Kind+" "+strings.Join(f.About, ",")+": "+f.Cause)
		for _, r := range f.Remedies {
			for _, command := range r.Commands {
				node.Exec("sh", "-ec", command)
			}
		}
	}
	for i, want := range [][2]string{
		{"tunnel-dropped b,c: ", "(udp port 6081) from the nodes b, c: "},
		{"tunnel-dropped c: ", "(udp port 6081) to node c: "},
		{"routed-dropped d,e,f,g: ", "IPv4 packets from pods on the nodes d, e, f and 1 more to pods on this node"},
		{"routed-dropped d: ", "IPv6 packets from pods on this node to pods on node d"},
	} {
		if i >= len(got) || !strings.HasPrefix(got[i], want[0]) || !strings.Contains(got[i], want[1]) {
			t.Errorf("finding %d of %q is not %q", i+1, got, want)
		}
	}
	if left := found(); len(got) != 4 || len(left) > 0 {
		t.Errorf("%d findings, and after the remedies %+v", len(got), left)
	}
}

// firewalld's rules are changed by its own command.
func TestFirewalldRemedies(t *testing.T) {
	by := firewall.Drop{Family: "inet", Table: firewalld, Chain: "filter_INPUT"}
	in := drop{by: by, in: true, nodes: []string{"d"}, routed: firewalled().Peers[2].Routed,
		packet: firewall.Packet{Dst: netip.MustParseAddr("10.244.0.2")}}
	for want, r := range map[string]report.Remedy{
		"--add-port=6081/udp":        in.openTunnel("eth0", nat.TunnelOf(api.TunnelGeneve, 0)),
		"--add-protocol=gre":         in.openTunnel("eth0", nat.TunnelOf(api.TunnelGRE, 0)),
		"--add-source=10.244.4.0/24": in.openRouted(firewalled()),
	} {
		n := len(r.Commands)
		if n != 2 || !strings.HasSuffix(r.Commands[0], want) || r.Commands[n-1] != "firewall-cmd --reload" {
			t.Errorf("%s: %+v", want, r)
		}
	}
	if f := in.finding("routed-dropped", "x", report.Remedy{}); !strings.HasPrefix(fmt.Sprint(f.Evidence), "[the policy of chain filter_INPUT") {
		t.Errorf("evidence %q", f.Evidence)
	}
}
