package suite

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// listen opens a TCP listener, dial a connection, both at a place.
func listen(t *testing.T, p place, addr netip.Addr) *net.TCPListener {
	t.Helper()
	var l net.Listener
	err := p.do(func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(addr.String(), "0")); return err })
	must(t, 0, err)
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

func dial(p place, network, addr string) (conn net.Conn, err error) {
	err = p.do(func() (err error) { conn, err = net.DialTimeout(network, addr, time.Minute); return err })
	if err != nil {
		return nil, fmt.Errorf("from %s: %w", p.name, err)
	}
	return conn, nil
}

// peerSeen opens a connection, sends data in both directions, and returns the client's address as the server sees it.
func peerSeen(t *testing.T, network string, client, server place, addr netip.Addr) netip.Addr {
	t.Helper()
	if network == "tcp" {
		l := listen(t, server, addr)
		conn, err := dial(client, network, l.Addr().String())
		must(t, 0, err)
		defer conn.Close()
		l.SetDeadline(time.Now().Add(time.Minute))
		peer, err := l.AcceptTCP()
		must(t, 0, err)
		defer peer.Close()
		return peer.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	}
	var s *net.UDPConn
	err := server.do(func() (err error) { s, err = net.ListenUDP("udp", &net.UDPAddr{IP: addr.AsSlice()}); return err })
	must(t, 0, err)
	defer s.Close()
	conn, err := dial(client, network, s.LocalAddr().String())
	must(t, 0, err)
	defer conn.Close()
	for _, c := range []net.Conn{s, conn} {
		c.SetDeadline(time.Now().Add(time.Minute))
	}
	_, err = conn.Write([]byte("question"))
	must(t, 0, err)
	buf := make([]byte, 64)
	_, from, err := s.ReadFromUDPAddrPort(buf)
	must(t, 0, err)
	_, err = s.WriteToUDPAddrPort([]byte("answer"), from)
	must(t, 0, err)
	if n, err := conn.Read(buf); err != nil || string(buf[:n]) != "answer" {
		t.Fatalf("%s got %q back from %s, %v", client.name, buf[:n], addr, err)
	}
	return from.Addr().Unmap()
}

// streams sends a large stream over TCP, and expects it to arrive unmodified. Without checksum offload disabled in the
// pods the userspace datapath would deliver none of it.
func streams(t *testing.T, c cluster) {
	a, b, remote, outside := c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c"), c.host(t, underlay.Outside)
	for i, far := range c.family.FarAddrs() {
		for _, way := range []struct {
			from, to place
			addr     netip.Addr
		}{
			{a, b, b.ips[i]}, {a, remote, remote.ips[i]}, {remote, a, a.ips[i]}, {a, outside, far.Addr()},
			{c.host(t, "node1"), remote, remote.ips[i]},
		} {
			if stream(t, way.from, way.to, way.addr, 4<<20); t.Failed() {
				return // each further one may take until its deadline
			}
		}
	}
}

// stream sends size random bytes from one place to a listener at another and compares the received ones.
func stream(t *testing.T, from, to place, addr netip.Addr, size int64) {
	t.Helper()
	l := listen(t, to, addr)
	deadline := time.Now().Add(time.Minute)
	type sent struct {
		sum [32]byte
		err error
	}
	done := make(chan sent, 1)
	go func() {
		sum, err := send(from, l.Addr().String(), size, deadline)
		done <- sent{sum, err}
	}()
	start := time.Now()
	l.SetDeadline(deadline)
	conn, err := l.AcceptTCP()
	if err != nil {
		t.Errorf("%s to %s: no connection: %v (%v)", from.name, addr, err, (<-done).err)
		return
	}
	defer conn.Close()
	conn.SetDeadline(deadline)
	hash := sha256.New()
	n, err := io.Copy(hash, conn)
	conn.Close()
	s := <-done
	if n != size || err != nil || s.err != nil || [32]byte(hash.Sum(nil)) != s.sum {
		t.Errorf("%s to %s: %d of %d bytes, receiver %v, sender %v, same content: %v", from.name, addr, n, size, err, s.err,
			[32]byte(hash.Sum(nil)) == s.sum)
		return
	}
	t.Logf("%s to %s: %d MiB in %s", from.name, addr, size>>20, time.Since(start).Round(time.Millisecond))
}

func send(from place, to string, size int64, deadline time.Time) (sum [32]byte, err error) {
	conn, err := dial(from, "tcp", to)
	if err != nil {
		return sum, err
	}
	defer conn.Close()
	conn.SetDeadline(deadline)
	hash := sha256.New()
	random := rand.NewChaCha8([32]byte{1})
	if _, err := io.Copy(io.MultiWriter(hash, conn), io.LimitReader(random, size)); err != nil {
		return sum, err
	}
	return [32]byte(hash.Sum(nil)), nil
}
