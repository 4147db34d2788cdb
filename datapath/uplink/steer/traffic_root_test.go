package steer

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// setupTraffic is a node like setup's, whose NIC is called nic and is created by the commands for ip(8). Host, outside
// and pods have the addresses 11, 1 and 40 of a network, in both families; with vlan also of one in VLAN 10.
func setupTraffic(t *testing.T, nic string, vlan bool, commands ...string) *node {
	t.Helper()
	n := setup(t, Any)
	n.host.IP("addr flush dev eth0")
	n.outside.IP("addr flush dev far0")
	for _, command := range commands {
		n.host.IP(command)
	}
	n.host.IP("link set " + nic + " promisc on")
	n.config.NIC = n.index(n.host, nic)
	n.pods.IP("link set pods0 address " + podMAC)
	n.address(n.host, nic, 11, 0)
	n.address(n.outside, "far0", 1, 0)
	n.address(n.pods, "pods0", 40, 0)
	if vlan {
		n.host.IP("link add link " + nic + " name vlan10 address " + vlanMAC + " type vlan id 10")
		n.outside.IP("link add link far0 name vlan10 type vlan id 10")
		n.pods.IP("link add link pods0 name vlan10 address " + pod10MAC + " type vlan id 10")
		n.address(n.host, "vlan10", 11, 1)
		n.address(n.outside, "vlan10", 1, 1)
		n.address(n.pods, "vlan10", 40, 1)
	}
	n.host.Must(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		l, err := netlink.LinkByName(nic)
		if err != nil {
			return err
		}
		n.config.Hosts = MACs(l, links)
		return nil
	})
	n.ensure()
	n.sync(Entry{mac(t, podMAC), 0}, Entry{mac(t, pod10MAC), 10})
	return n
}

func (n *node) address(ns *nstest.NS, dev string, host, network int) {
	n.t.Helper()
	ns.IP("link set " + dev + " up")
	ns.Exec("sysctl", "-q", "-w", "net.ipv6.conf."+dev+".disable_ipv6=0")
	ns.IP(fmt.Sprintf("addr add 192.0.2.%d/28 dev %s", base(network)+host%16, dev))
	ns.IP(fmt.Sprintf("-6 addr add fd00:%d::%d/64 dev %s nodad", network, host, dev))
}

// base is a network's first address: each network has 16.
func base(network int) int { return 16 * (network + 1) }

// talk makes host, outside and pods send each other a stream, in both families and all networks.
func (n *node) talk(networks int) {
	n.t.Helper()
	type end struct {
		name string
		ns   *nstest.NS
		host int
	}
	ends := []end{{"host", n.host, 11}, {"outside", n.outside, 1}, {"pods", n.pods, 40}}
	for network := range networks {
		for _, from := range ends {
			for _, to := range ends {
				if from.name == to.name {
					continue
				}
				for _, addr := range []string{fmt.Sprintf("192.0.2.%d", base(network)+to.host%16),
					fmt.Sprintf("fd00:%d::%d", network, to.host)} {
					if err := transfer(from.ns, to.ns, addr); err != nil {
						n.t.Errorf("from %s to %s, %s: %v", from.name, to.name, addr, err)
					}
				}
			}
		}
	}
}

// transfer sends 3 MB by TCP: enough for the kernel to merge segments where it can.
func transfer(from, to *nstest.NS, addr string) error {
	const size, limit = 3_000_000, time.Minute
	var l net.Listener
	if err := to.Do(func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(addr, "0")); return err }); err != nil {
		return err
	}
	defer l.Close()
	sent := make(chan error, 1)
	go func() {
		var conn net.Conn
		err := from.Do(func() (err error) { conn, err = net.DialTimeout("tcp", l.Addr().String(), limit); return err })
		if err == nil {
			_, err = conn.Write(make([]byte, size))
			err = errors.Join(err, conn.Close())
		}
		sent <- err
	}()
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	conn, err := l.Accept()
	if err != nil {
		return errors.Join(err, <-sent)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	got, err := io.Copy(io.Discard, conn)
	if err == nil && got != size {
		err = fmt.Errorf("%d of %d bytes arrived", got, size)
	}
	return errors.Join(err, <-sent)
}

// Streams pass whatever the NIC's and the port's offloads do: missing checksums, oversized or merged segments.
func TestRootOffloads(t *testing.T) {
	n := setupTraffic(t, "eth0", false)
	for _, features := range []string{"tx on tso on gso on gro on", "tx off tso off gso off gro off"} {
		for _, dev := range []string{"eth0", "port0"} {
			n.host.Exec(append([]string{"ethtool", "-K", dev}, strings.Fields(features)...)...)
			t.Run(features+" at "+dev, func(t *testing.T) { n.talk(1) })
		}
	}
	t.Run("MTU 9000", func(t *testing.T) {
		for ns, dev := range map[*nstest.NS]string{n.outside: "far0", n.pods: "pods0"} {
			ns.IP("link set " + dev + " mtu 9000")
		}
		n.host.IP("link set eth0 mtu 9000")
		n.host.IP("link set port0 mtu 9000")
		n.talk(1)
	})
}

// The host's VLAN interface and pods share a VLAN, with the tag in the frame or stripped from it.
func TestRootVLANsAndBonds(t *testing.T) {
	ovstest.KernelOnly(t, "only the kernel in which that is tested is sure to have VLAN interfaces and bonds")
	t.Run("VLAN", func(t *testing.T) {
		n := setupTraffic(t, "eth0", true)
		if len(n.config.Hosts) != 2 {
			t.Errorf("the host's addresses are %v, want those of eth0 and vlan10", n.config.Hosts)
		}
		n.talk(2)
		for _, offload := range []string{"off", "on"} {
			n.host.Exec("ethtool", "-K", "eth0", "rxvlan", offload, "txvlan", offload)
			t.Run("offload "+offload, func(t *testing.T) { n.talk(2) })
		}
	})
	for _, mode := range []string{"active-backup", "802.3ad"} {
		t.Run("bond "+mode, func(t *testing.T) {
			n := setupTraffic(t, "bond0", true, "link add bond0 type bond mode "+mode, "link set bond0 address "+hostMAC,
				"link set eth0 down", "link set eth0 master bond0", "link set bond0 up")
			n.talk(2)
		})
	}
}

// A macvlan of the host's in another namespace gets its frames as before.
func TestRootMacvlan(t *testing.T) {
	n := setupTraffic(t, "eth0", false)
	guest := nstest.New(t)
	n.host.IP("link add link eth0 name mv0 type macvlan mode bridge")
	n.host.IP("link set mv0 netns " + guest.Name)
	n.address(guest, "mv0", 14, 0)
	for _, addr := range []string{"192.0.2.17", "fd00:0::1"} {
		if err := transfer(guest, n.outside, addr); err != nil {
			t.Errorf("from a macvlan to the outside, %s: %v", addr, err)
		}
	}
	if err := transfer(n.outside, guest, fmt.Sprintf("192.0.2.%d", base(0)+14)); err != nil {
		t.Errorf("from the outside to a macvlan: %v", err)
	}
	n.talk(1)
}

// Only interfaces on top of the NIC in this namespace count as the host's.
func TestRootMACs(t *testing.T) {
	n := setup(t, Any)
	n.host.IP("link add link eth0 name mv0 address " + vlanMAC + " type macvlan mode bridge")
	n.host.Must(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if got, want := fmt.Sprint(MACs(l, links)), fmt.Sprint([]api.MAC{mac(t, hostMAC), mac(t, vlanMAC)}); got != want {
			t.Errorf("the host has %s, want %s", got, want)
		}
		return nil
	})
}
