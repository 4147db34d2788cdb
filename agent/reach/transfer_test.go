package reach

import (
	"bytes"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/test/nstest"
)

// served is an end that accepts transfers, and the nodes that it knows.
type served struct {
	*listener
	addr  netip.Addr
	nodes map[netip.Addr]string
}

// receiver is the name hash of its node.
const receiver = 12

func serveIn(t *testing.T, addr string) (ns *nstest.NS, s served) {
	t.Helper()
	ns = nstest.New(t)
	ns.Exec("ip", "link", "set", "lo", "up", "mtu", "1500")
	s = served{addr: netip.MustParseAddr(addr), nodes: map[netip.Addr]string{}}
	s.nodes[s.addr] = "there"
	ns.Must(func() (err error) { s.listener, err = listenTCP(s.addr); return err })
	t.Cleanup(func() { s.Close() })
	return ns, s
}

func (s served) pulse(until time.Time) {
	s.serve(receiver, func(a netip.Addr) string { return s.nodes[a] }, until, time.Now())
}

// ends runs both ends until the transfer ends, or for its maximum number of pulses.
func (s served) ends(t *testing.T, c transfer) (o pure.Outcome, ended bool) {
	t.Helper()
	defer c.Close()
	for range 500 {
		if o, ended = c.step(); ended {
			return o, ended
		}
		s.pulse(time.Now().Add(time.Minute))
		time.Sleep(10 * time.Millisecond) // a pulse
	}
	return o, ended
}

// A transfer passes over the kernel's sockets. One with changed content, from an address that is no node's end, or to
// an agent that does not run, proves nothing; one without an answer is recognised.
func TestRootTransfer(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1"} {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			transfers(t, addr)
		})
	}
}

func transfers(t *testing.T, addr string) {
	ns, s := serveIn(t, addr)
	begin := func(content []byte, single bool) (c transfer) {
		ns.Must(func() (err error) { c, err = connect(s.addr, s.addr, content, single); return err })
		return c
	}
	right := pure.Content(pure.NameHash("there"), receiver)
	for _, c := range []struct {
		name    string
		content []byte
		single  bool
		before  string
		want    pure.Outcome
		ended   bool
	}{
		{"all is well", right, false, "", pure.Passed, true},
		{"all is well", right, true, "", pure.Passed, true},
		{"changed", append(bytes.Repeat([]byte{0}, 1), right[1:]...), false, "", pure.Unclear, true},
		{"the last byte is", append(bytes.Clone(right[:len(right)-1]), right[len(right)-1]^1), false, "", pure.Unclear, true},
		{"long segments are lost", right, false, "nft add table inet f; nft add chain inet f c '{ type filter hook input priority 0; }'; " +
			"nft add rule inet f c meta length \\> 1500 drop", pure.Resent, true},
		{"long segments are lost, which there are none of", right, true, "", pure.Passed, true},
		{"what is longer than a small packet is lost", right, false, "nft add rule inet f c meta length \\> 500 drop", pure.Stuck, false},
		{"TCP is lost", right, false, "nft add rule inet f c tcp flags syn drop", pure.Unanswered, false},
	} {
		if c.before != "" {
			ns.Exec("sh", "-c", c.before)
		}
		if o, ended := s.ends(t, begin(c.content, c.single)); o != c.want || ended != c.ended {
			t.Errorf("%s, %s: %q, ended %v, want %q, %v", addr, c.name, o, ended, c.want, c.ended)
		}
		s.pulse(time.Now())
	}
	ns.Exec("nft", "delete table inet f")
	delete(s.nodes, s.addr)
	if o, ended := s.ends(t, begin(right, false)); o != pure.Unclear || !ended {
		t.Errorf("%s, no node's end: %q, ended %v", addr, o, ended)
	}
	s.Close()
	c := begin(right, false)
	if o, ended := c.step(); o != pure.Unclear || !ended {
		t.Errorf("%s, no agent: %q, ended %v", addr, o, ended)
	}
	c.Close()
}

// A sender of nothing, of garbage, or without end is disconnected, and there are never more than a few.
func TestRootTransferLimits(t *testing.T) {
	ns, s := serveIn(t, "127.0.0.1")
	dial := func() (c net.Conn) {
		ns.Must(func() (err error) { c, err = net.Dial("tcp4", "127.0.0.1:6784"); return err })
		t.Cleanup(func() { c.Close() })
		return c
	}
	until := time.Now().Add(time.Minute)
	for range 3 * maxIncoming {
		dial()
	}
	for range 5 {
		s.pulse(until)
	}
	if len(s.incoming) != maxIncoming {
		t.Errorf("%d connections are kept, want %d", len(s.incoming), maxIncoming)
	}
	for i := range s.incoming {
		s.incoming[i].until = time.Now().Add(-time.Second)
	}
	if s.pulse(until); len(s.incoming) > 0 {
		t.Errorf("%d connections are kept that have sent nothing in their time", len(s.incoming))
	}
	right := pure.Content(pure.NameHash("there"), receiver)
	for name, content := range map[string][]byte{"garbage": bytes.Repeat([]byte("x"), 100), "without end": append(right, right...)} {
		c := dial()
		must(t, c.SetDeadline(time.Now().Add(time.Minute)))
		gone := make(chan error)
		go func() {
			var err error
			for err == nil { // repeatedly
				_, err = c.Write(content)
			}
			gone <- err
		}()
		ended := false
		for !ended {
			s.pulse(until)
			select {
			case err := <-gone:
				if !strings.Contains(err.Error(), unix.ECONNRESET.Error()) && !strings.Contains(err.Error(), unix.EPIPE.Error()) {
					t.Errorf("%s: %v, want it cut off", name, err)
				}
				ended = true
			case <-time.After(10 * time.Millisecond): // a pulse
			}
		}
		if n, _ := c.Read(make([]byte, 100)); n > len(pure.Receipt()) {
			t.Errorf("%s: answered with %d bytes", name, n)
		}
		if len(s.incoming) > 0 {
			t.Errorf("%s: %d connections are kept", name, len(s.incoming))
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
