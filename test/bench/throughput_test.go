package bench

import (
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/fairlead-cni/fairlead/test/bench/report"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
)

// The throughput of a shared machine changes by a third within seconds: so a round is the sum of many short interleaved
// streams.
const (
	speedRounds, turns = 10, 6
	streamTime         = 100 * time.Millisecond
)

// end is an end of a stream: in runs f in its network namespace, where it has the address.
type end struct {
	do   func(f func() error) error
	addr string
}

// BenchmarkKernelThroughput measures TCP from pod to pod on the kernel's datapath. The peers have the same MTU and the
// simplest setup: two namespaces on a Linux bridge, and two such bridges connected by a vxlan device over the same
// underlay.
func BenchmarkKernelThroughput(b *testing.B) {
	x := withPods(b, lab.Options{Datapath: "system"})
	mtu := x.mtu(b)
	from := x.endOf(b, here)
	bridged := []end{x.plain(b, "node1", "bridge", "10.98.1.10", mtu), x.plain(b, "node1", "bridge", "10.98.1.11", mtu)}
	joined := []end{x.plain(b, "node1", "vxlan", "10.98.2.10", mtu), x.plain(b, "node2", "vxlan", "10.98.2.11", mtu)}
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
	for _, c := range []struct {
		name, against string
		ours, peer    []end
	}{
		{"throughput, one node", "Linux bridge", []end{from, x.endOf(b, beside)}, bridged},
		{"throughput, across nodes", "vxlan", []end{from, x.endOf(b, across)}, joined},
	} {
		stream(b, c.ours) // warm-up: ARP, flows
		stream(b, c.peer)
		var ours, theirs []float64
		for range speedRounds {
			o, p := round(b, c.ours, c.peer)
			ours, theirs = append(ours, o), append(theirs, p)
		}
		report.Add(b, report.Result{Group: "kernel's datapath, pod to pod", Name: c.name, Unit: "Gbit/s", Ours: ours,
			Peer: theirs, Against: c.against, Target: report.AtLeast(0.9)})
	}
}

// mtu is that of the pods.
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

// round is the mean of many short interleaved streams each, in Gbit/s.
func round(b *testing.B, ours, peer []end) (o, p float64) {
	b.Helper()
	sent := map[int]float64{}
	order := []int{0, 1}
	for range turns {
		for _, which := range order {
			sent[which] += stream(b, [][]end{ours, peer}[which]) / turns
		}
		slices.Reverse(order)
	}
	return sent[0], sent[1]
}

// stream sends over TCP from the first end to the second one for some time, and returns Gbit/s.
func stream(b *testing.B, ends []end) float64 {
	b.Helper()
	from, to := ends[0], ends[1]
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatalf("a stream from %s to %s: %v", from.addr, to.addr, err)
		}
	}
	var l net.Listener
	must(to.do(func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(to.addr, "0")); return err }))
	defer l.Close()
	var received atomic.Int64
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for buf := make([]byte, 1<<17); err == nil; {
			var n int
			n, err = conn.Read(buf)
			received.Add(int64(n))
		}
	}()
	var conn net.Conn
	must(from.do(func() (err error) { conn, err = net.DialTimeout("tcp", l.Addr().String(), 10*time.Second); return err }))
	defer conn.Close()
	begin, data := time.Now(), make([]byte, 1<<17)
	must(conn.SetDeadline(begin.Add(streamTime + 20*time.Second)))
	for time.Since(begin) < streamTime {
		_, err := conn.Write(data)
		must(err)
	}
	return float64(received.Load()) * 8 / 1e9 / time.Since(begin).Seconds()
}
