package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/internal/packetsocket"
	"github.com/fairlead-cni/fairlead/test/nstest"
)

// pair is a node and a neighbour on one wire: eth0 to eth0.
func pair(t *testing.T) (node, far *nstest.NS) {
	t.Helper()
	node, far = nstest.New(t), nstest.New(t)
	nstest.Veth(node, "eth0", far, "eth0")
	return node, far
}

func ask(t *testing.T, node *nstest.NS, q ProbeRequest) map[netip.Addr]api.MAC {
	t.Helper()
	q.NIC = "eth0"
	if q.Timeout == 0 {
		q.Timeout = 2 * time.Second // a busy machine answers late
	}
	var used map[netip.Addr]api.MAC
	node.Must(func() (err error) {
		used, err = Probe(t.Context(), q)
		return err
	})
	return used
}

// limit is the Timeout of a probe: long for one that ends with its answers.
func limit(answers int) time.Duration {
	if answers > 0 {
		return time.Minute
	}
	return 2 * time.Second
}

func addrs(s ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func macOf(t *testing.T, n *nstest.NS) (m api.MAC) {
	t.Helper()
	n.Must(func() error {
		d, err := net.InterfaceByName("eth0")
		if err == nil {
			m = api.MAC(d.HardwareAddr)
		}
		return err
	})
	return m
}

// The kernel answers for its own addresses, and for no others.
func TestRootAskAKernel(t *testing.T) {
	node, far := pair(t)
	far.IP("addr add 192.0.2.7/24 dev eth0")
	far.IP("addr add 2001:db8::7/64 dev eth0 nodad")
	all := addrs("192.0.2.7", "192.0.2.8", "2001:db8::7", "2001:db8::8")
	used, owner := ask(t, node, ProbeRequest{Addrs: all}), macOf(t, far)
	if len(used) != 2 || used[all[0]] != owner || used[all[2]] != owner {
		t.Errorf("%v are used, want %s and %s by %s", used, all[0], all[2], owner)
	}
	if got := far.IP("neigh show dev eth0"); strings.Contains(got, "0.0.0.0") || strings.Contains(got, "192.0.2") {
		t.Errorf("the neighbour learned something from a probe: %s", got)
	}
	// The probe ends once all have answered: an hour is longer than any test.
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("it goes on listening"))
	defer cancel()
	node.Must(func() error {
		_, err := Probe(ctx, ProbeRequest{NIC: "eth0", Addrs: addrs("192.0.2.7", "2001:db8::7"), Timeout: time.Hour})
		return err
	})
	if used := ask(t, node, ProbeRequest{Addrs: all, VLAN: 10}); len(used) != 0 {
		t.Errorf("in VLAN 10, which the neighbour is not in, %v are used", used)
	}
}

// answer stands for a neighbour in one VLAN that has addr: it receives requests and answers them, on a socket of its
// own, until the test ends.
func answer(t *testing.T, far *nstest.NS, vlan uint16, addr netip.Addr, deafTo int) {
	t.Helper()
	filter := claims(vlan)
	filter[7] = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 256} // anything in the VLAN, including requests
	s := listener(t, far, filter)
	ended := make(chan struct{})
	t.Cleanup(func() { s.Close(); <-ended })
	mac := macOf(t, far)
	go func() {
		defer close(ended)
		frame := make([]byte, 256)
		for {
			n, err := s.Read(frame)
			if err != nil {
				return // closed
			}
			if string(frame[n-len(addr.AsSlice()):n]) != string(addr.AsSlice()) {
				continue
			}
			if deafTo--; deafTo >= 0 {
				continue
			}
			if _, err := s.Write(tagged(announcement(mac, addr), vlan)); err != nil {
				t.Error(err)
			}
		}
	}()
}

func tagged(frame []byte, vlan uint16) []byte {
	if vlan == 0 {
		return frame
	}
	tag := binary.BigEndian.AppendUint16([]byte{0x81, 0}, vlan)
	return slices.Concat(frame[:12], tag, frame[12:])
}

func listener(t *testing.T, n *nstest.NS, filter []unix.SockFilter) (s *os.File) {
	t.Helper()
	n.Must(func() error {
		d, err := net.InterfaceByName("eth0")
		if err == nil {
			s, err = packetsocket.Open(d, filter)
		}
		return err
	})
	return s
}

// Requests and answers carry the tag; an answer in another VLAN does not count.
func TestRootAskInAVLAN(t *testing.T) {
	for _, a := range addrs("192.0.2.7", "2001:db8::7") {
		node, far := pair(t)
		answer(t, far, 10, a, 0)
		for vlan, want := range map[uint16]int{10: 1, 0: 0, 20: 0} {
			if used := ask(t, node, ProbeRequest{VLAN: vlan, Addrs: []netip.Addr{a}, Timeout: limit(want)}); len(used) != want {
				t.Errorf("VLAN %d: %v are used, want %d", vlan, used, want)
			}
		}
	}
}

// An unsolicited announcement in another VLAN, or untagged, says nothing about an address; in the VLAN itself it does.
func TestRootReceiveFromVLAN(t *testing.T) {
	for heard, want := range map[uint16]int{10: 1, 0: 0, 20: 0} {
		node, far := pair(t)
		a := addrs("192.0.2.7", "2001:db8::7")
		s, mac := listener(t, far, nil), macOf(t, far)
		stop, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for {
				for _, one := range a {
					if _, err := s.Write(tagged(announcement(mac, one), heard)); err != nil {
						t.Error(err)
					}
				}
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		}()
		for _, one := range a {
			if used := ask(t, node, ProbeRequest{VLAN: 10, Addrs: []netip.Addr{one}, Timeout: limit(want)}); len(used) != want {
				t.Errorf("heard in VLAN %d, asked in 10: %v are used, want %d", heard, used, want)
			}
		}
		close(stop)
		<-ended
		s.Close()
	}
}

// One lost frame does not make an address free.
func TestRootAskTwice(t *testing.T) {
	node, far := pair(t)
	a := netip.MustParseAddr("192.0.2.7")
	answer(t, far, 0, a, 1)
	if used := ask(t, node, ProbeRequest{Addrs: []netip.Addr{a}, Timeout: 20 * time.Second}); used[a] != macOf(t, far) {
		t.Errorf("%v are used: the second question was not asked, or not heard", used)
	}
}

// An answer counts if it arrived in time, even if the process was late to read it.
func TestRootAskOfALateProcess(t *testing.T) {
	for _, a := range addrs("192.0.2.7", "2001:db8::7") {
		node, far := pair(t)
		asks, answers := listener(t, node, claims(0)), listener(t, far, nil)
		defer asks.Close()
		defer answers.Close()
		if _, err := answers.Write(announcement(macOf(t, far), a)); err != nil {
			t.Fatal(err)
		}
		raw, err := asks.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		nstest.Wait(t, time.Minute, "the answer to be in the socket", func() (has bool) {
			_ = raw.Control(func(fd uintptr) {
				_, _, err := unix.Recvfrom(int(fd), make([]byte, 256), unix.MSG_PEEK)
				has = err == nil
			})
			return has
		})
		used := map[netip.Addr]api.MAC{}
		q := ProbeRequest{NIC: "eth0", Addrs: []netip.Addr{a}, Timeout: -time.Second} // already expired
		if err := q.round(asks, macOf(t, node), used); err != nil || used[a] != macOf(t, far) {
			t.Errorf("%s: used is %v, %v: the answer was not read", a, used, err)
		}
	}
}

func TestRootAskNobody(t *testing.T) {
	node := nstest.New(t)
	a := addrs("192.0.2.7")
	for nic, want := range map[string]string{"lo": "not an Ethernet", "eth9": "no such network interface"} {
		err := node.Do(func() error {
			_, err := Probe(t.Context(), ProbeRequest{NIC: nic, Addrs: a, Timeout: time.Second})
			return err
		})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), nic) {
			t.Errorf("%s: %v, want %q", nic, err, want)
		}
	}
	node.IP("link add eth0 type veth peer name eth1") // both down
	err := node.Do(func() error {
		_, err := Probe(t.Context(), ProbeRequest{NIC: "eth0", Addrs: a, Timeout: time.Second})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "network is down") {
		t.Errorf("an interface that is down: %v", err)
	}
	node.IP("link set eth0 up")
	node.IP("link set eth1 up")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = node.Do(func() error {
		_, err := Probe(ctx, ProbeRequest{NIC: "eth0", Addrs: a, Timeout: time.Minute})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "deadline exceeded") {
		t.Errorf("a question that is given up: %v", err)
	}
}

// A neighbour that had another MAC for the address learns the new one; it is announced three times.
func TestRootAnnounce(t *testing.T) {
	pod, far := pair(t)
	own := addrs("192.0.2.7", "2001:db8::7")
	pod.IP("addr add 192.0.2.7/24 dev eth0")
	pod.IP("addr add 2001:db8::7/64 dev eth0 nodad")
	far.IP("addr add 192.0.2.1/24 dev eth0")
	far.IP("addr add 2001:db8::1/64 dev eth0 nodad")
	for _, a := range own {
		far.IP("neigh add " + a.String() + " lladdr 02:00:00:00:00:99 dev eth0 nud stale")
	}
	heard := listen(t, far)
	mac := macOf(t, pod)
	if err := Announce(t.Context(), pod.Path, "eth0", mac, own); err != nil {
		t.Fatal(err)
	}
	for _, a := range own {
		nstest.Wait(t, time.Minute, "the neighbour to learn of "+a.String(), func() bool {
			return strings.Contains(far.IP("neigh show "+a.String()+" dev eth0"), mac.String())
		})
		for n := range announcements {
			select {
			case got := <-heard[a]:
				if got != mac {
					t.Errorf("%s was announced for %s, want %s", a, got, mac)
				}
			case <-time.After(time.Minute):
				t.Errorf("%s was announced %d times, want %d", a, n, announcements)
			}
		}
	}
	pod.IP("link del eth0")
	if err := Announce(t.Context(), pod.Path, "eth0", mac, own); err == nil || !strings.Contains(err.Error(), "eth0") {
		t.Errorf("announcing from an interface that is gone: %v", err)
	}
}

// listen collects the claims on a wire, by address.
func listen(t *testing.T, n *nstest.NS) map[netip.Addr]chan api.MAC {
	t.Helper()
	heard := map[netip.Addr]chan api.MAC{}
	for _, a := range addrs("192.0.2.7", "2001:db8::7") {
		heard[a] = make(chan api.MAC, 100)
	}
	s := listener(t, n, claims(0))
	t.Cleanup(func() { s.Close() })
	go func() {
		frame := make([]byte, 256)
		for {
			n, err := s.Read(frame)
			if err != nil {
				return // closed
			}
			if addr, owner, ok := claim(frame[:n]); ok && heard[addr] != nil {
				heard[addr] <- owner
			}
		}
	}()
	return heard
}

// A ping of the path's MTU is answered, a larger one can't be sent or is not answered, and an unused address does not
// answer.
func TestRootEcho(t *testing.T) {
	node, far := pair(t)
	for n, suffix := range map[*nstest.NS]string{node: "1", far: "7"} {
		n.IP("addr add 192.0.2." + suffix + "/24 dev eth0")
		n.IP("addr add 2001:db8::" + suffix + "/64 dev eth0 nodad")
	}
	for _, a := range addrs("192.0.2.7", "2001:db8::7") {
		for size, want := range map[int]string{1500: "", 100: "", 1501: "message too long"} {
			err := node.Do(func() error { return Echo(t.Context(), a, size, time.Minute) })
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%d bytes to %s: %v, want %q", size, a, err, want)
			}
		}
	}
	for _, a := range addrs("192.0.2.8", "2001:db8::8") {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := node.Do(func() error { return Echo(ctx, a, 100, time.Minute) })
		cancel()
		if err == nil || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("unused address: %v", err)
		}
	}
}

// The first packet to each address is lost.
func TestRootEchoOfALossyPath(t *testing.T) {
	node, far := pair(t)
	for n, suffix := range map[*nstest.NS]string{node: "1", far: "7"} {
		n.IP("addr add 192.0.2." + suffix + "/24 dev eth0")
		n.IP("addr add 2001:db8::" + suffix + "/64 dev eth0 nodad")
	}
	far.Exec("nft", "add table netdev loss { chain in { type filter hook ingress device eth0 priority 0; "+
		"icmp type echo-request numgen inc mod 2 0 counter drop; icmpv6 type echo-request numgen inc mod 2 0 counter drop; }; }")
	var both sync.WaitGroup // each waits its full time for the lost reply
	for _, a := range addrs("192.0.2.7", "2001:db8::7") {
		both.Go(func() {
			if err := node.Do(func() error { return Echo(t.Context(), a, 100, 15*time.Second) }); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	if rules := far.Exec("nft", "list", "table", "netdev", "loss"); strings.Count(rules, "packets 1 ") != 2 {
		t.Errorf("not one packet to each address was lost: %s", rules)
	}
}
