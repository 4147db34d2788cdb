package bridged

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// server answers each datagram with its source address and its payload.
type server struct {
	at   place
	addr netip.AddrPort
}

func (s *server) String() string { return fmt.Sprintf("%s (%s)", s.at.name, s.addr.Addr()) }

func (s *server) family() int {
	if s.addr.Addr().Is4() {
		return 4
	}
	return 6
}

// serve starts a server for each address of a place. They stop when the test ends.
func serve(t *testing.T, p place) (all []*server) {
	t.Helper()
	for _, ip := range p.ips {
		var conn *net.UDPConn
		must(t, p.do(func() (err error) {
			conn, err = net.ListenUDP("udp", &net.UDPAddr{IP: ip.AsSlice()})
			return err
		}))
		t.Cleanup(func() { conn.Close() })
		go func() {
			for buf := make([]byte, 2048); ; {
				n, from, err := conn.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				answer := from.Addr().Unmap().String() + " " + string(buf[:n])
				_, _ = conn.WriteToUDPAddrPort([]byte(answer), from) // the client reports a missing answer
			}
		}()
		all = append(all, &server{p, conn.LocalAddr().(*net.UDPAddr).AddrPort()})
	}
	return all
}

const (
	// The first request is repeated: it may wait for neighbour resolution, and the userspace datapath drops packets
	// that wait. Later requests are sent once, and limit only bounds the latency: a lost answer never comes, and on a
	// busy machine an ovs-vswitchd in User-Mode Linux stalls for seconds.
	askAgain  = 500 * time.Millisecond
	patience  = 60
	questions = 3
	limit     = 30 * time.Second
	// impatience is the number of tries where no answer is expected.
	impatience = 2
)

// call sends requests to a server from a place and returns the source address that the server saw. Each request has
// exactly one answer.
func call(from place, s *server, tries int) (sees netip.Addr, err error) {
	var conn net.Conn
	err = from.do(func() (err error) { conn, err = net.Dial("udp", s.addr.String()); return err })
	if err != nil {
		return sees, err
	}
	defer conn.Close()
	for range tries {
		if sees, err = ask(conn, "first", askAgain); err == nil {
			break
		}
	}
	if err != nil {
		return sees, err
	}
	for n := range questions {
		again, err := ask(conn, fmt.Sprint("question ", n), limit)
		if err != nil {
			return sees, fmt.Errorf("after an answer: %w", err)
		}
		if again != sees {
			return sees, fmt.Errorf("it sees %s, and then %s", sees, again)
		}
	}
	return sees, oneEach(conn)
}

// ask sends one request. Late answers to the first request are skipped.
func ask(conn net.Conn, question string, limit time.Duration) (sees netip.Addr, err error) {
	end := time.Now().Add(limit)
	if _, err := conn.Write([]byte(question)); err != nil {
		time.Sleep(time.Until(end)) // an ICMP error arrives at once
		return sees, err
	}
	if err := conn.SetReadDeadline(end); err != nil {
		return sees, err
	}
	for buf := make([]byte, 2048); ; {
		n, err := conn.Read(buf)
		if err != nil {
			time.Sleep(time.Until(end))
			return sees, fmt.Errorf("no answer in %s: %w", limit, err)
		}
		if who, of, _ := strings.Cut(string(buf[:n]), " "); of == question {
			return netip.ParseAddr(who)
		}
	}
}

// oneEach fails on duplicate answers.
func oneEach(conn net.Conn) error {
	if err := conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		return err
	}
	for buf := make([]byte, 2048); ; {
		n, err := conn.Read(buf)
		if err != nil {
			return nil
		}
		if text := string(buf[:n]); !strings.HasSuffix(text, " first") {
			return fmt.Errorf("a second answer: %s", text)
		}
	}
}
