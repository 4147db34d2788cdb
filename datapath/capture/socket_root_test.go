package capture

import (
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/nstest"
)

// A capture continues after its interface was down, and reports its deletion.
func TestRootInterfaceIsGone(t *testing.T) {
	node, far := nstest.New(t), nstest.New(t)
	nstest.Veth(node, "eth0", far, "eth0")
	for n, suffix := range map[*nstest.NS]string{node: "1", far: "7"} {
		n.IP("addr add 192.0.2." + suffix + "/24 dev eth0")
	}
	addr := netip.MustParseAddr("192.0.2.7")
	var s *Socket
	node.Must(func() (err error) {
		s, err = Open("eth0", Filter{Of: []netip.Addr{addr}}, 100)
		return err
	})
	t.Cleanup(func() { s.Close() })
	got := make(chan error, 100)
	go func() {
		for {
			_, err := s.Next()
			got <- err
			if err != nil {
				return
			}
		}
	}()
	await := func(want error) {
		t.Helper()
		for end := time.After(time.Minute); ; {
			select {
			case err := <-got:
				if errors.Is(err, want) && (want != nil || err == nil) {
					return
				}
				if err != nil {
					t.Fatalf("%v, want %v", err, want)
				}
			case <-end:
				t.Fatalf("nothing within a minute, want %v", want)
			}
		}
	}
	node.Exec("ping", "-c1", "-W15", addr.String())
	await(nil)
	node.IP("link set eth0 down")
	node.IP("link set eth0 up")
	for len(got) > 0 {
		if err := <-got; err != nil {
			t.Fatal(err)
		}
	}
	node.Exec("ping", "-c1", "-W15", addr.String())
	await(nil)
	node.IP("link del eth0")
	await(ErrGone)
	s.Stop()
	if _, err := s.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after its end: %v", err)
	}
}
