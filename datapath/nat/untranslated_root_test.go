package nat

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/nstest"
)

// A flow that starts while the rules are flushed is translated as soon as they are back, even if the pod keeps sending.
func TestRootBegunWithoutMasquerade(t *testing.T) {
	node, outside, pod, _ := flushed(t)
	const v4, v6 = "192.0.2.9", "fd00:5::9"
	streams := map[string]*datagrams{v4: send(t, pod, outside, v4), v6: send(t, pod, outside, v6)}
	for to, want := range map[string]string{v4: "10.0.1.5", v6: "fd00:0:0:1::5"} {
		if got := streams[to].next(t); got.String() != want {
			t.Fatalf("without rules a datagram to %s comes from %s, want %s: the test is meaningless", to, got, want)
		}
	}
	dialled := dial(t, pod, outside, v4+":80")
	for deadline := time.Now().Add(time.Minute); !asks(t, node); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("after a minute conntrack has no connection of TCP")
		}
	}

	changes := strings.Join(apply(t, node, desired()), "\n")
	if !strings.Contains(changes, "without masquerading: 2") || !strings.Contains(changes, "without masquerading: 1") {
		t.Errorf("changes: %s", changes)
	}
	for to, want := range map[string]string{v4: "192.0.2.2", v6: "fd00:5::2"} {
		if got := streams[to].next(t); got.String() != want {
			t.Errorf("a datagram to %s comes from %s, want %s", to, got, want)
		}
	}
	if err := <-dialled; err != nil {
		t.Errorf("the client that connected meanwhile: %v", err)
	}
}

// If an agent was killed between writing the rules and flushing conntrack, or was down when rules were lost, the next
// one finds the rules as desired, and flushes conntrack nevertheless, even if its first attempt fails.
func TestRootForgottenAtTheStart(t *testing.T) {
	for _, how := range []string{"at once", "after a failure"} {
		t.Run(how, func(t *testing.T) {
			node, outside, pod, back := flushed(t)
			stream := send(t, pod, outside, "192.0.2.9")
			stream.next(t)
			back()
			if got := stream.next(t); got.String() != "10.0.1.5" {
				t.Fatalf("with the rules again a datagram comes from %s: the test is meaningless", got)
			}
			var tables Tables
			start := func(ctx context.Context) error {
				return node.Do(func() error { _, err := tables.Apply(ctx, desired()); return err })
			}
			if how != "at once" {
				ended, end := context.WithCancel(t.Context())
				end()
				if start(ended) == nil {
					t.Fatal("it does not fail")
				}
			}
			for range 2 { // the second does not read conntrack
				must(t, start(t.Context()))
			}
			if got := stream.next(t); got.String() != "192.0.2.2" {
				t.Errorf("it comes from %s, want the node's address", got)
			}
		})
	}
}

// Connections that work untranslated continue.
func TestRootWorkingConnectionsContinue(t *testing.T) {
	node, outside, pod, _ := flushed(t)
	outside.IP("route add 10.0.1.0/24 via 192.0.2.2") // the underlay has a route to the pods
	var l net.Listener
	must(t, outside.Do(func() (err error) { l, err = net.Listen("tcp", "192.0.2.9:80"); return err }))
	defer l.Close()
	var client net.Conn
	must(t, pod.Do(func() (err error) { client, err = net.DialTimeout("tcp", "192.0.2.9:80", time.Minute); return err }))
	defer client.Close()
	server, err := l.Accept()
	must(t, err)
	defer server.Close()
	send(t, pod, node, "192.0.2.2").next(t) // to the node itself
	if changes := strings.Join(apply(t, node, desired()), "\n"); strings.Contains(changes, "conntrack") {
		t.Errorf("changes: %s", changes)
	}
	_, err = client.Write([]byte("x"))
	must(t, err)
	must(t, server.SetReadDeadline(time.Now().Add(time.Minute)))
	if _, err := server.Read(make([]byte, 1)); err != nil {
		t.Errorf("a connection that was answered: %v", err)
	}
}

// flushed is a lan whose node has lost the rules of table nat, until back is called. Conntrack stays active: as on most
// nodes, other rules need it.
func flushed(t *testing.T) (node, outside, pod *nstest.NS, back func()) {
	t.Helper()
	node, outside, pod, _ = lan(t)
	for _, f := range families() {
		node.Exec(f.program, "-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
	}
	apply(t, node, desired())
	saved := map[string]string{}
	for _, f := range families() {
		saved[f.program] = node.Exec(f.program+"-save", "-t", "nat")
		node.Exec(f.program, "-t", "nat", "-F")
	}
	return node, outside, pod, func() {
		for program, rules := range saved {
			file := filepath.Join(t.TempDir(), "rules")
			must(t, os.WriteFile(file, []byte(rules), 0o600))
			node.Exec(program+"-restore", file)
		}
	}
}

// asks reports whether conntrack has an unreplied TCP connection.
func asks(t *testing.T, node *nstest.NS) bool {
	t.Helper()
	var all []*netlink.ConntrackFlow
	must(t, node.Do(func() (err error) {
		all, err = netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		return err
	}))
	return slices.ContainsFunc(all, func(c *netlink.ConntrackFlow) bool {
		tcp, ok := c.ProtoInfo.(*netlink.ProtoInfoTCP)
		return ok && tcp.State == tcpSynSent
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// datagrams are sent by a pod to one outside address, from one port.
type datagrams struct{ from, at *net.UDPConn }

func send(t *testing.T, pod, outside *nstest.NS, to string) *datagrams {
	t.Helper()
	d := &datagrams{}
	must(t, outside.Do(func() (err error) {
		d.at, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(to), 9)))
		return err
	}))
	t.Cleanup(func() { d.at.Close() })
	must(t, pod.Do(func() (err error) {
		d.from, err = net.DialUDP("udp", nil, d.at.LocalAddr().(*net.UDPAddr))
		return err
	}))
	t.Cleanup(func() { d.from.Close() })
	return d
}

// next sends a datagram and returns the source address that it arrives with.
func (d *datagrams) next(t *testing.T) netip.Addr {
	t.Helper()
	sent := time.Now().String()
	for buf := make([]byte, 100); ; {
		_, err := d.from.Write([]byte(sent)) // again if neighbour resolution has dropped one
		must(t, err)
		must(t, d.at.SetReadDeadline(time.Now().Add(10*time.Second)))
		n, from, err := d.at.ReadFromUDPAddrPort(buf)
		must(t, err)
		if string(buf[:n]) == sent {
			return from.Addr().Unmap()
		}
	}
}

// dial starts a connection, and returns a channel for the result.
func dial(t *testing.T, pod, outside *nstest.NS, to string) <-chan error {
	t.Helper()
	var l net.Listener
	must(t, outside.Do(func() (err error) { l, err = net.Listen("tcp", to); return err }))
	t.Cleanup(func() { l.Close() })
	result := make(chan error, 1)
	go func() {
		result <- pod.Do(func() error {
			conn, err := net.DialTimeout("tcp", to, 2*time.Minute)
			if err == nil {
				conn.Close()
			}
			return err
		})
	}()
	return result
}
