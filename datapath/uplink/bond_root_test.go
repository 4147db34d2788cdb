package uplink

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// stacked makes the NIC eth0 from the lab's veth, now m0, by lines for ip(8); far0 likewise from o0. With two there are
// also m1 and o1.
type stacked struct {
	name, nic, far string
	two            bool
}

func stacks() []stacked {
	members := func(master string, names ...string) (lines string) {
		for _, m := range names {
			lines += fmt.Sprintf("link set %s down\nlink set %s master %s\nlink set %[1]s up\n", m, m, master)
		}
		return lines
	}
	bond := func(name, mode string, names ...string) string {
		return "link add " + name + " type bond miimon 20 mode " + mode + "\n" + members(name, names...)
	}
	return []stacked{
		{"active-backup", bond("eth0", "active-backup", "m0", "m1"), "link add far0 type bridge\n" + members("far0", "o0", "o1"), true},
		{"802.3ad", bond("eth0", "802.3ad lacp_rate fast", "m0", "m1"), bond("far0", "802.3ad lacp_rate fast", "o0", "o1"), true},
		{"VLAN", "link set m0 up\nlink add link m0 name eth0 type vlan id 7\n",
			"link set o0 up\nlink add link o0 name far0 type vlan id 7\n", false},
	}
}

// stack applies s to a node that has nothing on its NIC.
func (f *fixture) stack(s stacked) {
	f.t.Helper()
	f.node.IP("link set eth0 down")
	f.node.IP("link set eth0 name m0")
	f.outside.IP("link set far0 down")
	f.outside.IP("addr flush dev far0")
	f.outside.IP("link set far0 name o0")
	if s.two {
		nstest.Veth(f.node, "m1", f.outside, "o1")
	}
	f.outside.Exec("sh", "-ec", "printf %s \"$0\" | ip -batch -", s.far+"link set far0 up\naddr add "+outIP+"/24 dev far0\n"+
		"addr add "+outIP6+"/64 dev far0 nodad\naddr add fe80::1/64 dev far0 nodad\n")
	f.node.Exec("sh", "-ec", "printf %s \"$0\" | ip -batch -", s.nic+"link set eth0 up\n")
	f.batch(steady())
	nstest.Wait(f.t, time.Minute, "both ends to have a carrier, and the outside to answer", func() bool {
		_, err := f.node.Run("ping", "-c1", "-W1", outIP)
		_, err6 := f.node.Run("ping", "-c1", "-W1", outIP6)
		return err == nil && err6 == nil
	})
	if s.two {
		f.usesMember(0, true)
	}
}

// A bond and a VLAN interface are attached and restored like a NIC, in both modes, and a bond fails over to its other
// member meanwhile.
func TestRootBondsAndVLANs(t *testing.T) {
	ovstest.KernelOnly(t, "only the kernel in which that is tested is sure to have bonds and VLAN interfaces")
	for _, s := range stacks() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel() // mostly waits for Open vSwitch and the kernel
			f := setupSteer(t, "")
			f.stack(s)
			f.addPod()
			f.before = f.state()
			for _, f.mode = range []string{api.UplinkBridge, api.UplinkSteer} {
				f.nextAgent()
				if f.mode == api.UplinkSteer {
					f.know(entry(t, podMAC))
				}
				f.reached()
				f.podReached()
				if s.two {
					f.failsOver(s)
				}
				if f.mode == api.UplinkBridge {
					f.restoreWithoutOVS()
				} else if err := f.restore(); err != nil {
					t.Error(err)
				}
				f.checkAfter(Detached, f.mode)
			}
		})
	}
}

func (f *fixture) podReached() {
	f.t.Helper()
	for _, ip := range []string{podIP, podIP6} {
		if out, err := f.outside.Run("ping", "-c1", "-W15", ip); err != nil || strings.Contains(out, "DUP") {
			f.t.Errorf("%s, the pod %s: %v %s", f.mode, ip, err, out)
		}
	}
}

// failsOver takes each member's link down in turn, under traffic.
func (f *fixture) failsOver(s stacked) {
	f.t.Helper()
	for i := range 2 {
		reports, _ := f.measure(f.between(), func() {
			f.outside.IP(fmt.Sprintf("link set o%d down", i))
			f.usesMember(i, false)
			f.reached()
			f.podReached()
			f.outside.IP(fmt.Sprintf("link set o%d up", i))
			f.usesMember(i, true)
			f.reached()
			f.podReached()
		})
		for _, r := range reports { // the duration depends on the bond: LACP converges within seconds
			f.t.Logf("GAP %-6s %-6s %-48s %s", f.datapath, f.mode, s.name+": a member's link down and up", r)
		}
	}
}

// usesMember waits until the bond uses m0 or m1 again, or no longer, and both ends agree on that: before, a frame may
// be sent over a link on which LACP does not let the other end receive yet.
func (f *fixture) usesMember(i int, want bool) {
	f.t.Helper()
	nstest.Wait(f.t, time.Minute, fmt.Sprintf("the bond to use m%d: %t", i, want), func() bool {
		for m, up := range []bool{i != 0 || want, i != 1 || want} {
			if f.uses(f.node, "eth0", fmt.Sprintf("m%d", m)) != up || f.uses(f.outside, "far0", fmt.Sprintf("o%d", m)) != up {
				return false
			}
		}
		return true
	})
}

// uses reports whether a link of the bond is up and, with LACP, whether both ends send and receive there: state 63 has
// every bit of IEEE 802.1AX 6.4.2.3 but Defaulted and Expired. An interface that is no bond uses what has a carrier.
func (f *fixture) uses(end *nstest.NS, bond, member string) (is bool) {
	f.t.Helper()
	end.Must(func() error {
		out, err := os.ReadFile("/proc/thread-self/net/bonding/" + bond)
		if errors.Is(err, os.ErrNotExist) {
			out, err := end.Run("ip", "link", "show", "dev", member)
			is = !strings.Contains(out, "NO-CARRIER") && strings.Contains(out, ",UP")
			return err
		}
		_, part, _ := strings.Cut(string(out), "Slave Interface: "+member+"\n")
		part, _, _ = strings.Cut(part, "Slave Interface: ")
		is = strings.Contains(part, "MII Status: up") &&
			(!strings.Contains(string(out), "802.3ad") || strings.Count(part, "port state: 63\n") == 2)
		return err
	})
	return is
}
