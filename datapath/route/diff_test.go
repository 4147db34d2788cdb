package route

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// routes are those to dsts, each a prefix, followed by " via ADDRESS" if it is direct.
func routes(dsts ...string) Desired {
	d := Desired{Link: "gw0", Transport: "eth0"}
	for _, s := range dsts {
		s, via, direct := strings.Cut(s, " via ")
		p := netip.MustParsePrefix(s)
		if direct {
			d.Routes = append(d.Routes, Route{Dst: p, Via: netip.MustParseAddr(via)})
			continue
		}
		src := netip.MustParseAddr("10.0.1.1")
		if p.Addr().Is6() {
			src = netip.MustParseAddr("fd00:1::1")
		}
		d.Routes = append(d.Routes, Route{Dst: p, Src: src})
	}
	return d
}

func mustWant(t *testing.T, d Desired) table {
	t.Helper()
	if err := d.check(); err != nil {
		t.Fatal(err)
	}
	return wanted(unmerged(d.merge(), nil), 7, 8)
}

func TestDiff(t *testing.T) {
	names := map[verb]string{add: "+", replace: "=", remove: "-"}
	p := netip.MustParsePrefix
	for _, c := range []struct {
		name, want string
		desired    []string
		have       []string
		tamper     func(table)
		foreign    []string
	}{
		{"nothing", "", nil, nil, nil, nil},
		{"all new", "+10.0.2.0/24 +10.0.5.0/24 +fd00:2::/64", []string{"fd00:2::/64", "10.0.5.0/24", "10.0.2.0/24"}, nil, nil, nil},
		{"all there", "", []string{"10.0.2.0/24", "fd00:2::/64"}, []string{"fd00:2::/64", "10.0.2.0/24"}, nil, nil},
		{"add before remove", "+10.0.3.0/24 -10.0.2.0/24", []string{"10.0.3.0/24"}, []string{"10.0.2.0/24"}, nil, nil},
		{"host bits and doubles", "+10.0.2.0/24", []string{"10.0.2.9/24", "10.0.2.0/24"}, nil, nil, nil},
		{"same address, other mask", "+10.0.0.0/16 -10.0.0.0/24", []string{"10.0.0.0/16"}, []string{"10.0.0.0/24"}, nil, nil},
		{"changed next hop", "=10.0.2.0/24", []string{"10.0.2.0/24"}, []string{"10.0.2.0/24"}, func(m table) {
			r := m[key{dst: p("10.0.2.0/24")}]
			r.Gw = netip.MustParseAddr("192.0.2.1").AsSlice()
			m[key{dst: p("10.0.2.0/24")}] = r
		}, nil},
		{"changed link", "=fd00:2::/64", []string{"fd00:2::/64"}, []string{"fd00:2::/64"}, func(m table) {
			r := m[key{p("fd00:2::/64"), 1024}]
			r.LinkIndex = 9
			m[key{p("fd00:2::/64"), 1024}] = r
		}, nil},
		{"from the tunnel to direct", "=10.0.2.0/24", []string{"10.0.2.0/24 via 192.0.2.2"}, []string{"10.0.2.0/24"}, nil, nil},
		{"from direct to the tunnel", "=fd00:2::/64", []string{"fd00:2::/64"}, []string{"fd00:2::/64 via 2001:db8::2"}, nil, nil},
		{"direct, another address", "=10.0.2.0/24", []string{"10.0.2.0/24 via 192.0.2.3"}, []string{"10.0.2.0/24 via 192.0.2.2"}, nil, nil},
		{"two swap", "=10.0.2.0/24 =10.0.3.0/24", []string{"10.0.2.0/24 via 192.0.2.3", "10.0.3.0/24 via 192.0.2.2"},
			[]string{"10.0.2.0/24 via 192.0.2.2", "10.0.3.0/24 via 192.0.2.3"}, nil, nil},
		{"ours with another metric", "-10.0.2.0/24", []string{"10.0.2.0/24"}, []string{"10.0.2.0/24"}, func(m table) {
			m[key{p("10.0.2.0/24"), 50}] = m[key{dst: p("10.0.2.0/24")}]
		}, nil},
		{"one for two", "+10.0.2.0/23", []string{"10.0.2.0/24", "10.0.3.0/24"}, nil, nil, nil},
		{"one of the two goes", "+10.0.3.0/24 -10.0.2.0/23", []string{"10.0.3.0/24"}, []string{"10.0.2.0/24", "10.0.3.0/24"}, nil, nil},
		{"taken by others", "+10.0.5.0/24", []string{"10.0.2.0/24", "10.0.5.0/24"}, nil, nil, []string{"10.0.2.0/24"}},
		{"another has what two would share", "", []string{"10.0.2.0/24", "10.0.3.0/24"},
			[]string{"10.0.2.0/24 via 192.0.2.2", "10.0.3.0/24 via 192.0.2.2"}, func(m table) {
				for _, r := range mustWant(t, routes("10.0.2.0/24")) {
					m[key{dst: p("10.0.2.0/24")}] = r
				}
				for _, r := range mustWant(t, routes("10.0.3.0/24")) {
					m[key{dst: p("10.0.3.0/24")}] = r
				}
			}, []string{"10.0.2.0/23"}},
		{"another has half of what four would share", "+10.0.0.0/24 +10.0.1.0/24 +10.0.2.0/24 +10.0.3.0/24",
			[]string{"10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24"}, nil, nil, []string{"10.0.2.0/23"}},
		{"another has more than four share", "+10.0.0.0/22",
			[]string{"10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24"}, nil, nil, []string{"10.0.0.0/16"}},
		{"ours beside another's stays", "", []string{"10.0.2.0/24"}, []string{"10.0.2.0/24"}, nil, []string{"10.0.2.0/24"}},
		{"unwanted goes, also when taken", "-10.0.2.0/24", nil, []string{"10.0.2.0/24"}, nil, []string{"10.0.2.0/24"}},
	} {
		have := mustWant(t, routes(c.have...))
		if c.tamper != nil {
			c.tamper(have)
		}
		foreign := taken{}
		for _, f := range c.foreign {
			foreign[p(f)] = netlink.Route{}
		}
		var got []string
		want := wanted(unmerged(routes(c.desired...).merge(), foreign), 7, 8)
		for _, o := range diff(want, have, foreign) {
			got = append(got, names[o.verb]+o.route.Dst.String())
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: got %q, want %q", c.name, s, c.want)
		}
	}
}

func TestWantedRefuses(t *testing.T) {
	for name, r := range map[string]Route{
		"zero":                         {},
		"mapped":                       {Dst: netip.MustParsePrefix("::ffff:10.0.2.0/120")},
		"next hop of the other family": {Dst: netip.MustParsePrefix("fd00:2::/64"), Via: netip.MustParseAddr("192.0.2.2")},
		"family mismatch":              {Dst: netip.MustParsePrefix("10.0.2.0/24"), Src: netip.MustParseAddr("fd00::1")},
	} {
		if err := (Desired{Routes: []Route{r}}).check(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// The first five failures are reported, and how many others there are.
func TestFailures(t *testing.T) {
	var f failures
	f.add(netip.Prefix{}, nil)
	if f.err() != nil {
		t.Error("no failure gives an error")
	}
	for i, want := range []string{4: "e0; e1; e2; e3; e4", 5: "e0; e1; e2; e3; e4; and 1 more",
		7: "e0; e1; e2; e3; e4; and 3 more"} {
		f.add(netip.Prefix{}, errors.New(fmt.Sprint("e", i)))
		if got := f.err().Error(); want != "" && got != want {
			t.Errorf("%d failures: got %q, want %q", i+1, got, want)
		}
	}
}

// A destination is covered by a prefix that holds all of it, and by no other.
func TestCovered(t *testing.T) {
	prefixes := map[netip.Prefix]bool{netip.MustParsePrefix("10.0.2.0/24"): true, netip.MustParsePrefix("fd00:2::/64"): true}
	for dst, want := range map[string]bool{"10.0.2.0/24": true, "10.0.2.5/32": true, "10.0.3.0/24": false, "10.0.2.0/23": false,
		"fd00:2::5/128": true, "fd00:2::/48": false, "fd00:3::/64": false} {
		if covered(netip.MustParsePrefix(dst), prefixes) != want {
			t.Errorf("%s is covered: %t", dst, !want)
		}
	}
}
