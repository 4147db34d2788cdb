package steer

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

const (
	hostMAC  = "02:00:00:00:00:11"
	vlanMAC  = "02:00:00:00:00:12" // of an interface on top of the host's NIC
	outMAC   = "02:00:00:00:00:01"
	podMAC   = "02:00:00:00:01:01" // untagged
	pod10MAC = "02:00:00:00:01:0a" // in VLAN 10
	group    = "33:33:00:00:00:01"
	all      = "ff:ff:ff:ff:ff:ff"
	lldp     = "01:80:c2:00:00:0e"
)

// node is a host with a NIC and a port. What the port sends arrives in the namespace pods.
type node struct {
	t                   *testing.T
	host, outside, pods *nstest.NS
	config              Config
	at                  map[string]int // sockets, by receiver
	serial              uint32
}

func setup(t *testing.T, hooks Hooks) *node {
	t.Helper()
	if hooks == TCX {
		ovstest.LinuxFrom(t, 6, 6, "tcx")
	}
	n := &node{t: t, host: nstest.New(t), outside: nstest.New(t), pods: nstest.New(t), at: map[string]int{}}
	nstest.Veth(n.host, "eth0", n.outside, "far0")
	nstest.Veth(n.host, "port0", n.pods, "pods0")
	n.host.IP("link set eth0 address " + hostMAC)
	n.outside.IP("link set far0 address " + outMAC)
	for _, quiet := range []struct {
		ns  *nstest.NS
		dev string
	}{{n.host, "port0"}, {n.host, "eth0"}, {n.pods, "pods0"}, {n.outside, "far0"}} {
		quiet.ns.Exec("sysctl", "-q", "-w", "net.ipv6.conf."+quiet.dev+".disable_ipv6=1")
	}
	n.host.IP("addr add 192.0.2.11/24 dev eth0")
	n.outside.IP("addr add 192.0.2.1/24 dev far0")
	n.host.IP("link set eth0 promisc on")
	n.config = Config{Dir: bpffs(t), NIC: n.index(n.host, "eth0"), Port: n.index(n.host, "port0"), Hooks: hooks,
		Hosts: []api.MAC{mac(t, hostMAC), mac(t, vlanMAC)}}
	t.Cleanup(func() {
		if err := n.remove(); err != nil {
			t.Error(err)
		}
	})
	n.at["outside"] = n.socket(n.outside, "far0", unix.ETH_P_ALL)
	n.at["pods"] = n.socket(n.pods, "pods0", unix.ETH_P_ALL)
	// Only sockets for all protocols see a frame before the programs do.
	n.at["host"] = n.socket(n.host, "eth0", ethTest)
	return n
}

// bpffs is a directory, not created yet, in a file system of its own.
func bpffs(t *testing.T) string {
	t.Helper()
	nstest.Need(t)
	at, err := os.MkdirTemp("/tmp", "steer")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bpf", at, "bpf", 0, ""); err != nil {
		t.Fatalf("mounting a bpf file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		os.Remove(at)
	})
	return filepath.Join(at, "fairlead")
}

func (n *node) index(ns *nstest.NS, dev string) (index int) {
	n.t.Helper()
	ns.Must(func() error {
		i, err := net.InterfaceByName(dev)
		if err == nil {
			index = i.Index
		}
		return err
	})
	return index
}

func (n *node) ensure() {
	n.t.Helper()
	n.host.Must(n.config.Ensure)
	n.t.Helper()
	if s := n.state(); !s.Complete || !s.Left {
		n.t.Fatalf("after Ensure: %+v", s)
	}
}

func (n *node) remove() error { return n.host.Do(n.config.Remove) }

func (n *node) state() (s State) {
	n.t.Helper()
	n.host.Must(func() (err error) { s, err = n.config.State(); return err })
	return s
}

func (n *node) sync(entries ...Entry) {
	n.t.Helper()
	n.host.Must(func() error { return n.config.Sync(entries) })
}

func mac(t *testing.T, s string) api.MAC {
	t.Helper()
	m, err := api.ParseMAC(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// ethTest is an EtherType for experiments (IEEE 802, clause 9.2.4).
const ethTest = 0x88b5

// socket receives the frames of one device.
func (n *node) socket(ns *nstest.NS, dev string, proto uint16) (fd int) {
	n.t.Helper()
	index := n.index(ns, dev)
	ns.Must(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: swap(proto), Ifindex: index})
	})
	n.t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func swap(n uint16) uint16 { return n<<8 | n>>8 }

// sent is a frame, and where it is sent from.
type sent struct {
	from, src, dst string
	vlan           uint16
	service        bool // its tag is an 802.1ad one
}

func (s sent) String() string {
	return fmt.Sprintf("from %s, %s to %s in VLAN %d", s.from, s.src, s.dst, s.vlan)
}

// send sends a frame that want is to receive, and returns who received it, both as names in alphabetical order.
func (n *node) send(s sent, want string) string {
	n.t.Helper()
	n.serial++
	dst, src := mac(n.t, s.dst), mac(n.t, s.src)
	b := slices.Concat(dst[:], src[:])
	if s.vlan != 0 {
		kind := uint16(ethVLAN)
		if s.service {
			kind = ethSVLAN
		}
		b = binary.BigEndian.AppendUint16(b, kind)
		b = binary.BigEndian.AppendUint16(b, s.vlan)
	}
	b = binary.BigEndian.AppendUint16(b, ethTest)
	b = binary.BigEndian.AppendUint32(b, n.serial)
	b = append(b, make([]byte, 60)...)
	where := map[string]struct {
		ns  *nstest.NS
		dev string
	}{"outside": {n.outside, "far0"}, "host": {n.host, "eth0"}, "pods": {n.pods, "pods0"}}[s.from]
	fd := n.socket(where.ns, where.dev, 0)
	if err := unix.Send(fd, b, 0); err != nil {
		n.t.Fatalf("sending: %v", err)
	}
	return strings.Join(n.who(s, strings.Fields(want)), " ")
}

// who waits until the last frame sent has arrived at all in want, which on a busy machine may depend on a kernel thread
// (ksoftirqd), and then until no more frames arrive. A copy takes microseconds more.
func (n *node) who(s sent, want []string) (got []string) {
	all := func() bool {
		return !slices.ContainsFunc(want, func(name string) bool { return !slices.Contains(got, name) })
	}
	deadline := time.Now().Add(time.Minute)
	for quiet := 0; quiet < 10; time.Sleep(time.Millisecond) {
		if all() {
			quiet++
		} else if time.Now().After(deadline) {
			n.t.Fatalf("%s: after a minute it has arrived at %q, want %q", s, got, want)
		}
		for name, fd := range n.at {
			for n.receives(fd, n.serial) {
				if name != s.from || s.from == "host" {
					got, quiet = append(got, name), 0
				}
			}
		}
	}
	slices.Sort(got)
	return got
}

// receives reads a frame from the socket and reports whether it is an incoming one with this serial number.
func (n *node) receives(fd int, serial uint32) bool {
	b := make([]byte, 200)
	for {
		size, from, err := unix.Recvfrom(fd, b, 0)
		if err != nil {
			return false
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		if ok && ll.Pkttype != unix.PACKET_OUTGOING && size >= 60 && strings.Contains(string(b[:size]),
			string(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(nil, ethTest), serial))) {
			return true
		}
	}
}
