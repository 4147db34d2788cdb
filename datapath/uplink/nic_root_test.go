package uplink

import (
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// nicFault is a fault of the NIC while it is attached.
type nicFault struct {
	name string
	do   func(f *fixture)
	// after is what happens once the host has the NIC back; differs matches lines of its state that may differ from
	// before.
	after   func(f *fixture)
	differs string
}

func nicFaults() []nicFault {
	return []nicFault{
		{name: "down", do: func(f *fixture) { f.node.IP("link set eth0 down") }},
		{name: "port down", do: func(f *fixture) { f.ovs.Ofctl("mod-port", BridgeName, nic, "down") }},
		{name: "without carrier", do: func(f *fixture) { f.outside.IP("link set far0 down") },
			after: func(f *fixture) {
				f.outside.IP("link set far0 up")
				f.outside.IP("-6 addr add " + outIP6 + "/64 dev far0 nodad")
				f.outside.IP("-6 addr add fe80::1/64 dev far0 nodad")
			}},
		{name: "renamed", do: func(f *fixture) {
			f.node.IP("link set eth0 down")
			f.node.IP("link set eth0 name eth9")
			f.node.IP("link set eth9 up")
		}},
		{name: "its MAC changed", do: func(f *fixture) { f.node.IP("link set eth0 address 02:00:00:00:00:99") },
			after:   func(f *fixture) { f.outside.IP("neigh flush dev far0") },
			differs: `link eth0|fe80::ff:fe00:99`},
		{name: "gone", do: func(f *fixture) { f.node.IP("link del eth0") }, differs: `\beth0\b|\bfe80::|\bto ff00::`},
	}
}

// Whatever has happened to the NIC, the first restore gives the host back everything that it had there.
func TestRootRestoreOfAnyNIC(t *testing.T) {
	for _, fault := range nicFaults() {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel() // mostly waits for Open vSwitch and the kernel
			f := setup(t, simple+"\nrule add iif eth0 table 100 priority 100", noDAD()...)
			f.before = f.state()
			f.nextAgent()
			fault.do(f)
			if err := f.restore(); err != nil {
				t.Errorf("restore: %v", err)
			}
			if j := f.open().Journal(); j.Phase != Detached {
				t.Errorf("%s: %s", j.Phase, j.Reason)
			}
			if fault.after != nil {
				fault.after(f)
			}
			if fault.name != "gone" {
				f.reached()
			}
			want, have := f.before, f.state()
			want.Lines, have.Lines = alike(want.Lines, fault.differs), alike(have.Lines, fault.differs)
			same(t, fault.name, want, have)
		})
	}
}

// If the kernel refuses to enable IPv6 on the NIC, the host still gets its IPv4 back, and the restore reports what is
// missing.
func TestRootRestoreWithoutIPv6(t *testing.T) {
	t.Parallel() // mostly waits for Open vSwitch and the kernel
	f := setup(t, simple+"\nrule add iif eth0 table 100 priority 100", noDAD()...)
	f.before = f.state()
	f.nextAgent()
	f.damage(func(text []byte) []byte {
		j, err := journal.Parse(text)
		f.must(err)
		j.NIC.Sysctls[hoststate.DisableIPv6] = "x" // as with a kernel that rejects "0"
		text, err = journal.Encode(j)
		f.must(err)
		return text
	}, true)
	if err := f.restore(); err == nil || !strings.Contains(err.Error(), "disable_ipv6") {
		t.Errorf("restore: %v", err)
	}
	f.outside.IP("neigh flush dev far0")
	if out, err := f.node.Run("ping", "-c1", "-W15", outIP); err != nil {
		t.Errorf("the host has no IPv4: %v: %s", err, out)
	}
	const ipv6 = `:|2001|addr_gen|disable_ipv6`
	want, have := f.before, f.state()
	want.Lines, have.Lines = alike(want.Lines, ipv6), alike(have.Lines, ipv6)
	same(t, "IPv4", want, have)
}

// A NIC that was renamed while it was attached is given back even if both daemons of Open vSwitch hang. What the
// database still has of it is removed when they continue.
func TestRootYieldOfRenamed(t *testing.T) {
	t.Parallel() // mostly waits for Open vSwitch and the kernel
	f := setup(t, simple, noDAD()...)
	f.ovs.NameSocket()
	f.before = f.state()
	f.nextAgent()
	nicFaults()[3].do(f)
	for _, d := range []*ovstest.Daemon{f.ovs.Vswitchd, f.ovs.Server} {
		d.Signal(syscall.SIGSTOP)
	}
	u := f.open()
	err := f.node.Do(func() error { _, err := u.Yield(t.Context(), VswitchdHangs); return err })
	f.reached()
	if err == nil || !strings.Contains(err.Error(), "ovsdb-server does not answer") {
		t.Errorf("yielded while both hang: %v", err)
	}
	for _, d := range []*ovstest.Daemon{f.ovs.Server, f.ovs.Vswitchd} {
		d.Signal(syscall.SIGCONT)
	}
	f.must(f.restore())
	f.reached()
	if out, err := f.ovs.Run("ovs-vsctl", "list-br"); err != nil || strings.Contains(out, BridgeName) {
		t.Errorf("%s is left: %v: %s", BridgeName, err, out)
	}
}

// alike removes the lines that may differ, and renames the NIC to its previous name.
func alike(lines []string, differs string) (out []string) {
	for _, line := range lines {
		line = strings.ReplaceAll(line, "eth9", nic)
		if differs == "" || !regexp.MustCompile(differs).MatchString(line) {
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return out
}
