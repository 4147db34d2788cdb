package nat

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/nstest"
)

var dual = []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("fd00:0:0:1::/64")}

func desired() Desired {
	return Desired{Gateway: "fairlead-gw0", PodCIDRs: dual, Masquerade: true, RandomFully: true}
}

func apply(t *testing.T, node *nstest.NS, d Desired) []string {
	t.Helper()
	var changes []string
	node.Must(func() (err error) { changes, err = Apply(d); return err })
	return changes
}

// dump is all that iptables and ip6tables say.
func dump(node *nstest.NS) string {
	var out strings.Builder
	for _, program := range []string{"iptables", "ip6tables"} {
		for _, table := range []string{"nat", "filter"} {
			out.WriteString(program + " " + table + "\n" + node.Exec(program, "-w", "5", "-t", table, "-S") + "\n")
		}
	}
	return out.String()
}

func TestRootApplyIsIdempotent(t *testing.T) {
	nstest.Need(t)
	node := nstest.New(t)
	if changes := apply(t, node, desired()); len(changes) == 0 {
		t.Error("the first Apply changed nothing")
	}
	got := dump(node)
	for _, rule := range []string{
		"-A FAIRLEAD-POSTROUTING -s 10.0.1.0/24 ! -o fairlead-gw0 -j MASQUERADE --random-fully",
		"-A FAIRLEAD-POSTROUTING -s fd00:0:0:1::/64 ! -o fairlead-gw0 -j MASQUERADE --random-fully",
		"-A POSTROUTING -j FAIRLEAD-POSTROUTING",
		"-A FAIRLEAD-FORWARD -i fairlead-gw0 -j ACCEPT",
		"-A FORWARD -j FAIRLEAD-FORWARD",
	} {
		if !strings.Contains(got, rule+"\n") {
			t.Errorf("no rule %q in\n%s", rule, got)
		}
	}
	if changes := apply(t, node, desired()); len(changes) != 0 {
		t.Errorf("the second Apply changed %q", changes)
	}
}

// What somebody changes by hand is mended, and the node's other rules stay.
func TestRootApplyMendsDrift(t *testing.T) {
	nstest.Need(t)
	for _, drift := range []string{
		"iptables -t nat -F FAIRLEAD-POSTROUTING",
		"iptables -t nat -D POSTROUTING -j FAIRLEAD-POSTROUTING",
		"iptables -t nat -A POSTROUTING -j FAIRLEAD-POSTROUTING",
		"iptables -t nat -A FAIRLEAD-POSTROUTING -s 10.9.9.9/32 -m comment --comment foreign -j ACCEPT",
		"iptables -t nat -R FAIRLEAD-POSTROUTING 1 -s 10.0.1.0/24 -j MASQUERADE",
		"iptables -t filter -F FAIRLEAD-FORWARD",
		"ip6tables -t nat -F FAIRLEAD-POSTROUTING",
		"ip6tables -t filter -D FORWARD -j FAIRLEAD-FORWARD",
	} {
		node := nstest.New(t)
		node.Exec("iptables", "-A", "FORWARD", "-s", "192.0.2.66/32", "-j", "DROP")
		apply(t, node, desired())
		want := dump(node)
		node.Exec(strings.Fields(drift)...)
		if got := dump(node); got == want {
			t.Fatalf("%s: changed nothing, the case is worth nothing", drift)
		}
		if changes := apply(t, node, desired()); len(changes) == 0 {
			t.Errorf("%s: repaired, but not told", drift)
		}
		if got := dump(node); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", drift, got, want)
		}
	}
}

func TestRootSwitchedOffIsRemoved(t *testing.T) {
	nstest.Need(t)
	node := nstest.New(t)
	node.Exec("iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "192.0.2.66/32", "-j", "RETURN")
	node.Exec("ip6tables", "-t", "nat", "-S")
	apply(t, node, desired())
	d := desired()
	d.Masquerade, d.PodCIDRs = false, dual[:1]
	apply(t, node, d)
	got := dump(node)
	if strings.Contains(got, Postrouting) || strings.Count(got, "-j "+Forward) != 1 {
		t.Errorf("without masquerade and IPv6 there is\n%s", got)
	}
	node.Must(func() error { _, err := Remove(); return err })
	got = dump(node)
	if strings.Contains(got, "FAIRLEAD") || !strings.Contains(got, "192.0.2.66") {
		t.Errorf("after Remove there is\n%s", got)
	}
	node.Must(func() error { _, err := Remove(); return err })
}

func TestRootMissingProgram(t *testing.T) {
	nstest.Need(t)
	t.Setenv("PATH", "/nonexistent")
	_, err := Apply(desired())
	if err == nil || !strings.Contains(err.Error(), "package iptables") {
		t.Errorf("got %v, want an error that names the package", err)
	}
	if _, err := Remove(); err != nil {
		t.Errorf("nothing to remove, but: %v", err)
	}
}
