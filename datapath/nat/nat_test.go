package nat

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func cidrs(s ...string) (out []netip.Prefix) {
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func addrs(s ...string) (out []netip.Addr) {
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func TestChains(t *testing.T) {
	ipv4, ipv6 := families()[0], families()[1]
	d := Desired{Gateway: "gw0", PodCIDRs: cidrs("10.0.1.9/24", "fd00:1::/64"), Masquerade: true, RandomFully: true}
	text := func(d Desired, f family) string {
		var out []string
		for _, c := range d.chains(f)[:4] {
			out = append(out, c.table+": "+strings.Join(c.rules, "; "))
		}
		return strings.Join(out, "\n")
	}
	const dnat = "nat: -o lo -j RETURN; -s 10.0.1.0/24 -o gw0 -m conntrack --ctstate DNAT -j MASQUERADE"
	const local = "! -i gw0 -o gw0 -m addrtype --src-type LOCAL -j DROP"
	const drops, forward = "mangle: " + local + "; -s 10.0.1.0/24 ! -i gw0 -o gw0 -j DROP\nmangle: \n", "\nfilter: -i gw0 -j ACCEPT; -o gw0 -j ACCEPT"
	only4 := Desired{Gateway: "gw0", PodCIDRs: cidrs("10.0.1.0/24")}
	with := func(change func(*Desired)) Desired { d := only4; change(&d); return d }
	for name, c := range map[string]struct{ got, want string }{
		"IPv4": {text(d, ipv4), drops + dnat + " --random-fully; " +
			"-s 10.0.1.0/24 ! -o gw0 -j MASQUERADE --random-fully" + forward},
		"no masquerade": {text(Desired{Gateway: "gw0", PodCIDRs: cidrs("fd00:1::/64"), NotMasqueraded: cidrs("fd00:2::/64")}, ipv6),
			"mangle: " + local + "; -s fd00:1::/64 ! -i gw0 -o gw0 -j DROP\nmangle: \n" +
				"nat: -o lo -j RETURN; -s fd00:1::/64 -o gw0 -m conntrack --ctstate DNAT -j MASQUERADE" + forward},
		"tunnel": {text(with(func(d *Desired) { d.Tunnel = Tunnel{"udp", 6081} }), ipv4),
			"mangle: -i gw0 -p udp -m udp --dport 6081 -j DROP; " + local + "; -s 10.0.1.0/24 ! -i gw0 -o gw0 -j DROP\n" +
				"mangle: -s 10.0.1.0/24 -p udp -m udp --dport 6081 -j DROP\n" + dnat + forward},
		"unmasked": {text(with(func(d *Desired) {
			d.Masquerade, d.NotMasqueraded = true, cidrs("10.0.2.0/23", "fd00:2::/64", "10.0.8.0/24")
		}), ipv4),
			drops + dnat + "; -o gw0 -j RETURN; -d 10.0.2.0/23 -j RETURN; -d 10.0.8.0/24 -j RETURN; " +
				"-s 10.0.1.0/24 ! -o gw0 -j MASQUERADE" + forward},
		"bridged": {text(with(func(d *Desired) {
			d.Masquerade, d.Pools, d.NodeAddrs = true, cidrs("192.0.2.96/28", "fd00:5::/96"), addrs("192.0.2.2", "fd00:5::2", "172.17.0.1")
		}), ipv4), "mangle: " + local + "; -s 10.0.1.0/24 ! -i gw0 -o gw0 -j DROP; " +
			"-d 192.0.2.96/28 ! -i gw0 -o gw0 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\nmangle: \n" +
			dnat + "; -s 10.0.1.0/24 -o gw0 -j RETURN; " +
			"-d 10.0.1.0/24 -o gw0 -m conntrack ! --ctstate DNAT -j RETURN; " +
			"-s 192.0.2.96/28 -o gw0 -j MASQUERADE; -s 192.0.2.2/32 -o gw0 -j RETURN; " +
			"-s 172.17.0.1/32 -o gw0 -j RETURN; -d 192.0.2.96/28 -o gw0 -j MASQUERADE; -s 192.0.2.96/28 ! -o gw0 -j MASQUERADE; " +
			"-s 10.0.1.0/24 ! -o gw0 -j MASQUERADE" + forward},
		"bridged without a podCIDR": {text(Desired{Gateway: "gw0", Pools: cidrs("fd00:5::/96"), NodeAddrs: addrs("192.0.2.2", "fd00:5::2"),
			RandomFully: true, Tunnel: Tunnel{"udp", 6081}}, ipv6),
			"mangle: -i gw0 -p udp -m udp --dport 6081 -j DROP; " + local +
				"; -d fd00:5::/96 ! -i gw0 -o gw0 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\n" +
				"mangle: -s fd00:5::2/128 -j RETURN; -s fd00:5::/96 -p udp -m udp --dport 6081 -j DROP\n" +
				"nat: -o lo -j RETURN; -s fd00:5::/96 -o gw0 -j SNAT --to-source fd00:5::2 --random-fully; " +
				"-s fd00:5::2/128 -o gw0 -j RETURN; -d fd00:5::/96 -o gw0 -j SNAT --to-source fd00:5::2 --random-fully; " +
				"-s fd00:5::/96 ! -o gw0 -j MASQUERADE --random-fully" + forward},
		"refused": {text(with(func(d *Desired) { d.Refused = cidrs("10.96.0.0/16", "fd00:96::/112") }), ipv4),
			drops + dnat + "\nfilter: -d 10.96.0.0/16 -i gw0 -j REJECT --reject-with icmp-port-unreachable; " +
				"-i gw0 -j ACCEPT; -o gw0 -j ACCEPT"},
		"other family": {text(with(func(d *Desired) { d.Masquerade = true }), ipv6), "mangle: \nmangle: \nnat: \nfilter: "},
	} {
		if c.got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, c.got, c.want)
		}
	}
}

// Traffic of the tunnel endpoint is accepted in and out and not tracked, only in the family of its address.
func TestTunnelChains(t *testing.T) {
	text := func(d Desired, f family) (out []string) {
		for _, c := range d.tunnelChains(f) {
			for _, r := range c.rules {
				out = append(out, c.table+" "+c.base+" "+r)
			}
		}
		return out
	}
	ipv4, ipv6 := families()[0], families()[1]
	end := TunnelEnd{"eth0", netip.MustParseAddr("192.0.2.2")}
	geneve := Desired{Tunnel: Tunnel{"udp", 6081}, TunnelEnd: end}
	want := []string{
		"filter INPUT -d 192.0.2.2/32 -i eth0 -p udp -m udp --dport 6081 -j ACCEPT",
		"filter OUTPUT -s 192.0.2.2/32 -o eth0 -p udp -m udp --dport 6081 -j ACCEPT",
		"raw PREROUTING -d 192.0.2.2/32 -i eth0 -p udp -m udp --dport 6081 -j CT --notrack",
		"raw OUTPUT -s 192.0.2.2/32 -o eth0 -p udp -m udp --dport 6081 -j CT --notrack",
	}
	if got := text(geneve, ipv4); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for name, none := range map[string][]string{
		"the other family":        text(geneve, ipv6),
		"no tunnel":               text(Desired{TunnelEnd: end}, ipv4),
		"not the kernel's":        text(Desired{Tunnel: geneve.Tunnel}, ipv4),
		"IPv4 where IPv6 is":      text(Desired{Tunnel: geneve.Tunnel, TunnelEnd: TunnelEnd{"eth0", netip.MustParseAddr("fd00::2")}}, ipv4),
		"nothing is wanted":       text(Desired{}, ipv4),
		"nothing is wanted, IPv6": text(Desired{}, ipv6),
	} {
		if len(none) > 0 {
			t.Errorf("%s: %q", name, none)
		}
	}
}

func TestCommit(t *testing.T) {
	forward := chain{table: "filter", base: "FORWARD", name: "OURS", place: beforeDropAll, rules: []string{"-i gw0 -j ACCEPT"}}
	end, head, none := forward, forward, forward
	end.place, head.place, none.rules = last, first, nil
	written := []string{":OURS - [0:0]", "-A OURS -i gw0 -j ACCEPT"}
	for _, c := range []struct {
		name  string
		chain chain
		base  []string
		have  state
		want  []string
	}{
		{"new", forward, []string{"-P FORWARD ACCEPT", "-A FORWARD -j X"}, absent, append(slices.Clone(written), "-A FORWARD -j OURS")},
		{"all there", forward, []string{"-A FORWARD -j X", "-A FORWARD -j OURS", "-A FORWARD -j DROP"}, equal, nil},
		{"content differs", forward, []string{"-A FORWARD -j OURS"}, different, written},
		{"jump is missing", forward, nil, equal, []string{"-A FORWARD -j OURS"}},
		{"jump is missing, others stop all", forward, []string{"-P FORWARD DROP", "-A FORWARD -j X", "-A FORWARD -j DROP", "-A FORWARD -j DROP"}, equal,
			[]string{"-I FORWARD 2 -j OURS"}},
		{"jump twice", forward, []string{"-A FORWARD -j OURS", "-A FORWARD -j OURS"}, equal,
			[]string{"-D FORWARD -j OURS", "-D FORWARD -j OURS", "-A FORWARD -j OURS"}},
		{"jump before and behind a drop", forward, []string{"-A FORWARD -j X", "-A FORWARD -j OURS", "-A FORWARD -j DROP", "-A FORWARD -j OURS"}, equal,
			[]string{"-D FORWARD -j OURS", "-D FORWARD -j OURS", "-I FORWARD 2 -j OURS"}},
		{"jump with a condition", forward, []string{`-A FORWARD -i x -m comment --comment "a b" -j OURS`, "-A FORWARD -j DROP"}, equal,
			[]string{`-D FORWARD -i x -m comment --comment "a b" -j OURS`, "-I FORWARD 1 -j OURS"}},
		{"jump behind a drop", forward, []string{"-A FORWARD -j DROP", "-A FORWARD -j OURS"}, equal,
			[]string{"-D FORWARD -j OURS", "-I FORWARD 1 -j OURS"}},
		{"jump behind a reject", forward, []string{`-A FORWARD -m comment --comment "the end" -j REJECT --reject-with icmp-host-prohibited`, "-A FORWARD -j OURS"},
			equal, []string{"-D FORWARD -j OURS", "-I FORWARD 1 -j OURS"}},
		{"an admin's own drop stays before", forward, []string{"-A FORWARD -s 192.0.2.66/32 -j DROP", "-A FORWARD -j OURS"}, equal, nil},
		{"no stop in this chain", end, []string{"-A FORWARD -j DROP", "-A FORWARD -j OURS"}, equal, nil},
		{"chain of a longer name", forward, []string{"-A FORWARD -j OURS-TOO", "-A FORWARD -j OURS"}, equal, nil},
		{"first of all", head, []string{"-P FORWARD ACCEPT", "-A FORWARD -j X", "-A FORWARD -j DROP"}, equal, []string{"-I FORWARD 1 -j OURS"}},
		{"another came before", head, []string{"-A FORWARD -j ACCEPT", "-A FORWARD -j OURS"}, equal, []string{"-D FORWARD -j OURS", "-I FORWARD 1 -j OURS"}},
		{"is first", head, []string{"-A FORWARD -j OURS", "-A FORWARD -j ACCEPT"}, equal, nil},
		{"remove", none, []string{"-A FORWARD -j OURS", "-A FORWARD -j X"}, different, []string{":OURS - [0:0]", "-D FORWARD -j OURS", "-X OURS"}},
		{"remove what is not there", none, []string{"-A FORWARD -j X"}, absent, nil},
	} {
		got, changes := c.chain.commit(c.base, c.have)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		if (len(got) == 0) != (len(changes) == 0) {
			t.Errorf("%s: %d lines but changes %q", c.name, len(got), changes)
		}
	}
}

func TestBadInput(t *testing.T) {
	for _, d := range []Desired{
		{Gateway: "", PodCIDRs: cidrs("10.0.1.0/24")}, {Gateway: "gw+", PodCIDRs: cidrs("10.0.1.0/24")},
		{Gateway: "a b", PodCIDRs: cidrs("10.0.1.0/24")}, {Gateway: "gw0", PodCIDRs: []netip.Prefix{{}}},
		{Gateway: "gw0", PodCIDRs: cidrs("10.0.1.0/24"), NotMasqueraded: []netip.Prefix{{}}},
		{Gateway: "gw0", Pools: []netip.Prefix{{}}}, {Gateway: "", Pools: cidrs("10.0.1.0/24")},
	} {
		if _, err := new(Tables).Apply(t.Context(), d); err == nil {
			t.Errorf("%+v is accepted", d)
		}
	}
}
