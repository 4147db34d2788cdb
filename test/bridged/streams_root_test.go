package bridged

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// streams checks that TCP passes with full segments, and that bridged pods have the underlay's MTU, whatever MTU routed
// pods have.
func (c cluster) streams(t *testing.T, places []place, flat bool) {
	at := map[string]place{}
	for _, p := range places {
		at[p.name] = p
		if p.netns == "" {
			continue
		}
		want := 1500
		if p.kind == routed && !flat {
			want = 1450 // overhead of geneve over IPv4: 50 bytes
		}
		if mtu := p.mtu(t, "eth0"); mtu != want {
			t.Errorf("%s has MTU %d, want %d", p.name, mtu, want)
		}
	}
	for _, way := range [][2]string{
		{"a-0-node1", "a-0-node2"}, {"a-10-node1", "a-20-node2"}, {"a-10-node1", "a-20-node1"}, {"a-10-node1", "b-10-node1"},
		{"a-10-node1", underlay.Outside}, {underlay.Outside, "a-10-node1"}, {"node1", "a-10-node1"}, {"a-0-node1", "node1"},
		{"a-routed-node1", "a-10-node1"}, {"a-10-node1", "a-routed-node2"}, {"node2", "a-0-node1"},
	} {
		from, to := at[way[0]], at[way[1]]
		for _, ip := range to.ips {
			if err := transfer(from, to, ip.String(), 500_000); err != nil {
				t.Errorf("TCP from %s to %s (%s): %v", from.name, to.name, ip, err)
			}
		}
	}
	for _, ip := range at["a-routed-node1"].ips {
		for _, name := range []string{"a-0-node1", "a-10-node1"} {
			at[name].sendsLarge(t, ip)
		}
	}
}

// sendsLarge checks that packets of the sender's MTU reach a pod with a smaller one: the node fragments them, or
// reports that they are too large.
func (p place) sendsLarge(t *testing.T, to netip.Addr) {
	t.Helper()
	whole := p.mtu(t, "eth0") - 8 - 40
	if to.Is4() {
		whole += 20
	}
	for _, df := range []string{"-Mwant", "-Mdont"} {
		wait(t, 10*time.Second, func() string { // ping waits for the reply to its last packet
			if _, err := p.run("ping", df, "-c3", "-i0.2", "-W1", "-s", fmt.Sprint(whole), to.String()); err != nil {
				return err.Error()
			}
			return ""
		})
	}
}

func (p place) mtu(t *testing.T, ifName string) (mtu int) {
	t.Helper()
	must(t, p.do(func() error {
		ifc, err := net.InterfaceByName(ifName)
		if err == nil {
			mtu = ifc.MTU
		}
		return err
	}))
	return mtu
}

// transfer sends size bytes from one place to the address of another.
func transfer(from, to place, addr string, size int64) error {
	var listener net.Listener
	err := to.do(func() (err error) { listener, err = net.Listen("tcp", net.JoinHostPort(addr, "0")); return err })
	if err != nil {
		return err
	}
	defer listener.Close()
	const limit = time.Minute
	sent := make(chan error, 1)
	go func() {
		var conn net.Conn
		err := from.do(func() (err error) { conn, err = net.DialTimeout("tcp", listener.Addr().String(), limit); return err })
		if err == nil {
			err = conn.SetDeadline(time.Now().Add(limit))
		}
		if err == nil {
			_, err = conn.Write(make([]byte, size))
			err = errors.Join(err, conn.Close())
		}
		sent <- err
	}()
	if err := listener.(*net.TCPListener).SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	conn, err := listener.Accept()
	if err != nil {
		return errors.Join(err, <-sent)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, conn)
	if err == nil && n != size {
		err = fmt.Errorf("%d of %d bytes arrived", n, size)
	}
	return errors.Join(err, <-sent)
}
