package bench

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/test/bench/report"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// The throughput of a shared machine varies by a third within seconds: a round is the mean of many short bursts,
// alternating between Fairlead and the peer, over connections that stay open.
const (
	speedRounds, turns = 10, 50
	burstTime          = 10 * time.Millisecond
)

// end is one end of a stream: do runs f in its network namespace, in which addr is its address.
type end struct {
	do   func(f func() error) error
	addr string
}

// BenchmarkKernelThroughput measures throughput and packet rates from pod to pod on the kernel's datapath, with the
// usual MTU and with that of jumbo frames. The peers have the same MTU and the simplest setup: two namespaces on a
// Linux bridge, and two such bridges connected by a vxlan device over the same underlay.
func BenchmarkKernelThroughput(b *testing.B) {
	kinds := []kind{
		{"TCP", "Gbit/s", func(b *testing.B, ends []end) burst { return streams(b, ends, 1) }},
		{"TCP, 4 streams", "Gbit/s", func(b *testing.B, ends []end) burst { return streams(b, ends, 4) }},
	}
	small := []kind{
		{"datagrams of 64 bytes", "per s", func(b *testing.B, ends []end) burst { return datagrams(b, ends, 32) }},
		{"datagrams of 64 bytes and answers, one at a time", "per s", func(b *testing.B, ends []end) burst { return datagrams(b, ends, 1) }},
	}
	b.Run("MTU of 1,500", func(b *testing.B) { throughput(b, 1500, append(kinds, small...)) })
	b.Run("MTU of 9,000", func(b *testing.B) { throughput(b, 9000, kinds) })
}

// kind is a kind of traffic from one end to another.
type kind struct {
	name, unit string
	open       func(b *testing.B, ends []end) burst
}

// burst sends for burstTime, and returns the rate of arrival per second.
type burst func() float64

func throughput(b *testing.B, mtu int, kinds []kind) {
	x := newBed(b, lab.Options{Datapath: "system", Nodes: 2, IPFamily: underlay.IPv4, NoAgent: true})
	x.setMTU(b, mtu)
	for _, node := range x.Nodes() {
		err := x.AgentStart(b.Context(), node)
		if err == nil {
			err = x.WaitReady(b.Context(), node)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	x.pods(b)
	inner := x.mtu(b)
	from := x.endOf(b, here)
	bridged := []end{x.plain(b, "node1", "bridge", "10.98.1.10", inner), x.plain(b, "node1", "bridge", "10.98.1.11", inner)}
	joined := []end{x.plain(b, "node1", "vxlan", "10.98.2.10", inner), x.plain(b, "node2", "vxlan", "10.98.2.11", inner)}
	x.joinBridges(b, inner)
	for _, c := range []struct {
		where, against string
		ours, peer     []end
	}{
		{"one node", "Linux bridge", []end{from, x.endOf(b, beside)}, bridged},
		{"across nodes", "vxlan", []end{from, x.endOf(b, across)}, joined},
	} {
		for _, k := range kinds {
			ours, theirs := k.open(b, c.ours), k.open(b, c.peer)
			r := report.Result{Group: "kernel's datapath, pod to pod", Unit: k.unit, Against: c.against, Target: report.AtLeast(0.9),
				Name: fmt.Sprintf("%s, %s, MTU %d", k.name, c.where, mtu), Note: fmt.Sprintf("the pods' MTU is %d", inner)}
			round(ours, theirs) // warm-up: ARP, flows, windows
			for range speedRounds {
				o, p := round(ours, theirs)
				r.Ours, r.Peer = append(r.Ours, o), append(r.Peer, p)
			}
			report.Add(b, r)
		}
	}
}

// setMTU sets the MTU of the nodes' NICs and of the network between them.
func (x *bed) setMTU(b *testing.B, mtu int) {
	b.Helper()
	for _, name := range append([]string{underlay.Hub}, x.Nodes()...) {
		h, err := x.Host(name)
		if err == nil {
			err = h.Do(func() error { return setAllMTUs(mtu) })
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

func setAllMTUs(mtu int) error {
	links, err := netlink.LinkList()
	for _, l := range links {
		if l.Type() == "veth" && err == nil {
			err = netlink.LinkSetMTU(l, mtu)
		}
	}
	return err
}

// joinBridges connects the peer's bridges of both nodes by vxlan.
func (x *bed) joinBridges(b *testing.B, mtu int) {
	b.Helper()
	for i, node := range x.Nodes() {
		local, remote := x.NodeAddrs(i + 1)[0].Addr(), x.NodeAddrs(2 - i)[0].Addr()
		for _, args := range [][]string{
			{"link", "add", "vx0", "type", "vxlan", "id", "77", "dstport", "8472", "local", local.String(), "remote", remote.String()},
			{"link", "set", "vx0", "mtu", fmt.Sprint(mtu), "master", "peervxlan", "up"},
		} {
			if _, err := x.NodeExec(b.Context(), node, append([]string{"ip"}, args...)...); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// mtu is the pods' MTU.
func (x *bed) mtu(b *testing.B) (mtu int) {
	b.Helper()
	err := x.endOf(b, here).do(func() error {
		device, err := net.InterfaceByName("eth0")
		if err == nil {
			mtu = device.MTU
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return mtu
}

func (x *bed) endOf(b *testing.B, pod string) end {
	b.Helper()
	r := x.pod(b, pod)
	h, err := x.Host(r.Node)
	if err != nil {
		b.Fatal(err)
	}
	return end{in(h, r.Netns), r.IPs[0]}
}

// in runs f in a network namespace of a host.
func in(h host.Host, netns string) func(func() error) error {
	return func(f func() error) error { return h.DoNet(netns, f) }
}

// plain is a namespace on a Linux bridge of a node, created by the reference plugin.
func (x *bed) plain(b *testing.B, node, bridge, addr string, mtu int) end {
	b.Helper()
	list, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": %[1]q, "plugins": [{"type": "bridge",
		"bridge": "peer%[1]s", "mtu": %[2]d, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.98.0.0/16",
		"rangeStart": %[3]q, "rangeEnd": %[3]q}]]}}]}`, bridge, mtu, addr))
	if err != nil {
		b.Fatal(err)
	}
	h, err := x.Host(node)
	if err != nil {
		b.Fatal(err)
	}
	netns := "/run/netns/plain-" + addr
	if err := h.MakeNetns(netns); err != nil {
		b.Fatal(err)
	}
	err = h.Do(func() error {
		cni := libcni.NewCNIConfig([]string{"/opt/cni/bin"}, nil)
		conf := &libcni.RuntimeConf{ContainerID: "plain-" + addr, NetNS: netns, IfName: "eth0"}
		got, err := cni.AddNetworkList(b.Context(), list, conf)
		if err != nil {
			return err
		}
		result, err := types100.NewResultFromResult(got)
		if err == nil && result.IPs[0].Address.IP.String() != addr {
			err = fmt.Errorf("it has %s, not %s", result.IPs[0].Address.IP, addr)
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return end{in(h, netns), addr}
}

// round returns the mean of many bursts of each.
func round(ours, peer burst) (o, p float64) {
	sums, order := [2]float64{}, []int{0, 1}
	for range turns {
		for _, which := range order {
			sums[which] += []burst{ours, peer}[which]() / turns
		}
		slices.Reverse(order)
	}
	return sums[0], sums[1]
}

// streams returns a burst over TCP connections from the first end to the second, on all of which it sends concurrently;
// in Gbit/s.
func streams(b *testing.B, ends []end, many int) burst {
	b.Helper()
	from, to := ends[0], ends[1]
	var l net.Listener
	listening(b, to, func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(to.addr, "0")); return err })
	b.Cleanup(func() { l.Close() })
	var received atomic.Int64
	var conns []net.Conn
	for range many {
		listening(b, from, func() error {
			conn, err := net.DialTimeout("tcp", l.Addr().String(), 10*time.Second)
			if err == nil {
				conns = append(conns, conn)
				b.Cleanup(func() { conn.Close() })
			}
			return err
		})
		arrived, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { arrived.Close() })
		go func() {
			for buf := make([]byte, 1<<17); ; {
				n, err := arrived.Read(buf)
				received.Add(int64(n))
				if err != nil {
					return
				}
			}
		}()
	}
	data := make([]byte, 1<<16)
	return func() float64 {
		var all sync.WaitGroup
		var sent atomic.Int64
		before, begin := received.Load(), time.Now()
		for _, conn := range conns {
			all.Go(func() {
				for time.Since(begin) < burstTime {
					n, err := conn.Write(data)
					if sent.Add(int64(n)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		waitFor(b, func() bool { return received.Load()-before >= sent.Load() })
		return float64(sent.Load()) * 8 / 1e9 / time.Since(begin).Seconds()
	}
}

// datagrams returns a burst of datagrams from the first end to the second, a window of them at a time, which the second
// end answers once all have arrived; in datagrams per second.
func datagrams(b *testing.B, ends []end, window int) burst {
	b.Helper()
	from, to := ends[0], ends[1]
	var in, out net.PacketConn
	bind := func(at end, conn *net.PacketConn) {
		listening(b, at, func() (err error) {
			*conn, err = net.ListenPacket("udp", net.JoinHostPort(at.addr, "0"))
			return err
		})
	}
	bind(to, &in)
	bind(from, &out)
	b.Cleanup(func() { in.Close(); out.Close() })
	go func() {
		buf := make([]byte, 64)
		for n := 1; ; n++ {
			_, sender, err := in.ReadFrom(buf)
			if err != nil {
				return
			}
			if n%window == 0 {
				_, _ = in.WriteTo(buf, sender) // a lost answer is detected below
			}
		}
	}()
	data := make([]byte, 64)
	return func() float64 {
		sent, begin := 0, time.Now()
		for time.Since(begin) < burstTime {
			for range window {
				if _, err := out.WriteTo(data, in.LocalAddr()); err != nil {
					b.Fatal(err)
				}
			}
			sent += window
			if err := out.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
				b.Fatal(err)
			}
			if _, _, err := out.ReadFrom(data); err != nil {
				b.Fatalf("a datagram from %s to %s or its answer was lost: %v", from.addr, to.addr, err)
			}
		}
		return float64(sent) / time.Since(begin).Seconds()
	}
}

// listening runs f at one end.
func listening(b *testing.B, at end, f func() error) {
	b.Helper()
	if err := at.do(f); err != nil {
		b.Fatalf("%s: %v", at.addr, err)
	}
}

func waitFor(b *testing.B, is func() bool) {
	b.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(20 * time.Microsecond) {
		if time.Now().After(deadline) {
			b.Fatal("what was sent did not arrive within 20 s")
		}
	}
}
