package chain

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/fairlead-cni/fairlead/test/crash/nodestate"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// A host port is reachable from outside and from another node, in both families, and is removed with the pod.
func TestRootHostPort(t *testing.T) {
	r, other := up(t)
	p := r.container(t)
	p.CapabilityArgs = map[string]any{"portMappings": []map[string]any{
		{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
	conflist := network("1.0.0", "chain", portmap)
	r.mustAdd(t, conflist, p)
	// No CHECK: portmap 1.1.1 looks for the rules of IPv4 among those of IPv6 as soon as a pod has both.
	r.serve(t, p, 80)
	outside, err := r.lab.Host(underlay.Outside)
	must(t, err)
	from := map[string]runtime{"outside": {node: outside}, "the other node": other}
	for name, client := range from {
		for _, node := range []string{"192.168.77.11", "fd77::11"} {
			if err := client.greeted(netip.MustParseAddr(node), 8080, time.Minute); err != nil {
				t.Errorf("from %s to the host port at %s: %v", name, node, err)
			}
		}
	}
	r.mustDel(t, conflist, p)
	for name, client := range from {
		if client.greeted(netip.MustParseAddr("192.168.77.11"), 8080, 3*time.Second) == nil {
			t.Errorf("from %s: the host port answers after DEL", name)
		}
	}
	r.has(t)
}

// serve greets every client that connects to a port of the container.
func (r runtime) serve(t *testing.T, p *libcni.RuntimeConf, port int) {
	t.Helper()
	var l net.Listener
	must(t, r.do(p, func() (err error) { l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); return err }))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, "hello from the pod")
			conn.Close()
		}
	}()
}

func (r runtime) greeted(addr netip.Addr, port uint16, limit time.Duration) error {
	var conn net.Conn
	err := r.node.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(addr, port).String(), limit)
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(limit))
	greeting, err := io.ReadAll(conn)
	if err == nil && string(greeting) != "hello from the pod" {
		err = fmt.Errorf("got %q", greeting)
	}
	return err
}

// A limit of what a pod receives is enforced. What it sends is not limited by that plugin on the userspace datapath:
// Open vSwitch receives frames from the veth before the kernel's ingress hook, which the plugin uses.
func TestRootBandwidth(t *testing.T) {
	r, _ := up(t)
	conflist := network("1.0.0", "chain", bandwidth)
	const limit = 8e6 // bits per second
	limited, free := r.container(t), r.container(t)
	limited.CapabilityArgs = map[string]any{"bandwidth": map[string]any{
		"ingressRate": limit, "ingressBurst": limit / 10, "egressRate": limit, "egressBurst": limit / 10}}
	podLimited, podFree := asPod(t, limited, r.mustAdd(t, conflist, limited)), asPod(t, free, r.mustAdd(t, conflist, free))
	must(t, r.check(conflist, limited))
	var in float64
	eventually(t, time.Minute, func() error { // the machine may stall for part of the second
		if in = r.rate(t, free, limited, podLimited); in < limit/10 {
			return fmt.Errorf("the pod receives %.1f Mbit/s, and its limit is %.0f", in/1e6, limit/1e6)
		}
		return nil
	})
	out := r.rate(t, limited, free, podFree)
	t.Logf("limit %.0f Mbit/s: to the pod %.1f, from it %.1f", limit/1e6, in/1e6, out/1e6)
	if in > 2*limit {
		t.Errorf("the pod receives %.1f Mbit/s, and its limit is %.0f", in/1e6, limit/1e6)
	}
	if out < 2*limit {
		t.Logf("the limit of what the pod sends works too: the comment of this test is out of date")
	}
	r.mustDel(t, conflist, limited)
	r.mustDel(t, conflist, free)
	r.has(t)
	// Without limits the same path is faster: it was the plugin that limited it.
	a, b := r.container(t), r.container(t)
	r.mustAdd(t, conflist, a)
	toB := asPod(t, b, r.mustAdd(t, conflist, b))
	eventually(t, time.Minute, func() error { // retried: the machine may be busy
		if unlimited := r.rate(t, a, b, toB); unlimited < 3*limit {
			return fmt.Errorf("without a limit only %.1f Mbit/s: this tests nothing", unlimited/1e6)
		}
		return nil
	})
}

// rate is the throughput in bits per second of a TCP stream of about a second.
func (r runtime) rate(t *testing.T, from, to *libcni.RuntimeConf, toPod nodestate.Pod) float64 {
	t.Helper()
	var l net.Listener
	must(t, r.do(to, func() (err error) { l, err = net.Listen("tcp4", ":0"); return err }))
	defer l.Close()
	received, done := int64(0), make(chan error, 1)
	began := time.Now()
	go func() {
		conn, err := l.Accept()
		if err == nil {
			defer conn.Close()
			began = time.Now()
			conn.SetReadDeadline(began.Add(time.Second))
			received, _ = io.Copy(io.Discard, conn)
		}
		done <- err
	}()
	var conn net.Conn
	must(t, r.do(from, func() (err error) {
		to := netip.AddrPortFrom(toPod.IPs[0], uint16(l.Addr().(*net.TCPAddr).Port))
		conn, err = net.DialTimeout("tcp", to.String(), time.Minute)
		return err
	}))
	conn.SetWriteDeadline(time.Now().Add(3 * time.Second))
	for chunk := make([]byte, 1<<16); ; {
		if _, err := conn.Write(chunk); err != nil { // the receiver has closed the connection
			break
		}
	}
	conn.Close()
	must(t, <-done)
	return float64(received) * 8 / time.Since(began).Seconds()
}

// The plugin tuning sets sysctls. It may also set another MAC, and then the pod has no network, because anti-spoofing
// lets a pod send only from the MAC that Fairlead assigned; CHECK reports it.
func TestRootTuning(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	r, _ := up(t)
	p := r.container(t)
	conflist := network("1.0.0", "chain", tuning)
	r.mustAdd(t, conflist, p)
	if got := strings.TrimSpace(r.in(t, p, "cat /proc/sys/net/core/somaxconn")); got != "517" {
		t.Errorf("net.core.somaxconn is %s", got)
	}
	must(t, r.check(conflist, p))
	r.in(t, p, "ping -c1 -w30 10.77.1.1")
	r.mustDel(t, conflist, p)
	r.end(t, p)

	p = r.container(t)
	conflist = network("1.0.0", "chain", `{"type": "tuning", "mac": "02:00:00:00:00:99"}`)
	r.mustAdd(t, conflist, p)
	if out, err := r.run(p, "ping -c1 -w1 10.77.1.1"); err == nil {
		t.Errorf("a pod with a MAC of its own choice reaches the gateway: %s", out)
	}
	if err := r.check(conflist, p); err == nil || !strings.Contains(err.Error(), "eth0 has MAC 02:00:00:00:00:99, want") {
		t.Errorf("CHECK: %v", err)
	}
	r.mustDel(t, conflist, p)
	r.has(t)
}
