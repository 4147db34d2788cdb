package link

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// Over the userspace datapath TCP data gets through with TxOff, in both families, and not without it: small packets
// still do, so everything seems to work until one end sends data. The kernel's datapath passes on that a checksum is
// still to be computed.
func TestRootTxOff(t *testing.T) {
	for name, c := range map[string]struct {
		txOff bool
		addr  string
	}{
		"IPv4, off": {true, "10.0.1.6"}, "IPv6, off": {true, "fd00:1::6"}, "IPv4, on": {false, "10.0.1.6"},
	} {
		t.Run(name, func(t *testing.T) {
			node := nstest.New(t)
			o := ovstest.Start(t, ovstest.Options{Datapath: ovstest.UnderTest(t), Netns: node.Path})
			var ports []ovstest.Port
			var pods []*nstest.NS
			for i := range byte(2) {
				pod := nstest.New(t)
				l := dual(pod)
				l.HostIf, l.MAC, l.TxOff = HostName(string('a'+i), "eth0"), api.MAC{2, 0, 0, 0, 0, 5 + i}, c.txOff
				l.Addrs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 1, 5 + i}), 24),
					netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 3: 1, 15: 5 + i}), 64)}
				attach(t, node, l)
				ports, pods = append(ports, ovstest.Port{Name: l.HostIf}), append(pods, pod)
			}
			o.AddBridge("br-int", ports...)
			o.Ofctl("add-flow", "br-int", "actions=NORMAL")
			// The kernel gives up neighbour resolution after three seconds.
			nstest.Wait(t, time.Minute, "small packets to get through", func() bool {
				_, err := pods[0].Run("ping", "-c1", "-W1", c.addr)
				return err == nil
			})
			want, limit := c.txOff || ovstest.UnderTest(t) == ovstest.System, 5*time.Second
			if want {
				limit = time.Minute
			}
			n, err := transfer(pods[0], pods[1], net.JoinHostPort(c.addr, "80"), limit)
			if arrived := n == payload; arrived != want {
				t.Errorf("of %d bytes %d arrived (%v), want all: %t", payload, n, err, want)
			}
		})
	}
}

const payload = 1 << 20

// transfer sends payload bytes from one namespace to another within the limit,
// and returns how many arrived.
func transfer(from, to *nstest.NS, address string, limit time.Duration) (n int64, err error) {
	var l net.Listener
	if err := to.Do(func() (err error) { l, err = net.Listen("tcp", address); return err }); err != nil {
		return 0, err
	}
	defer l.Close()
	var conn net.Conn
	dial := func() (err error) { conn, err = net.DialTimeout("tcp", address, limit); return err }
	if err := from.Do(dial); err != nil {
		return 0, err
	}
	in, err := l.Accept()
	if err != nil {
		return 0, err
	}
	defer in.Close()
	for _, c := range []net.Conn{conn, in} {
		if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
			return 0, err
		}
	}
	go func() {
		defer conn.Close()
		_, _ = conn.Write(make([]byte, payload)) // the receiver counts what arrives
	}()
	return io.Copy(io.Discard, in)
}
