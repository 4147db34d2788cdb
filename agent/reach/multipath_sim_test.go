package reach

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/nstest"
)

// One of several paths that packets take by their ports drops all, such as a member of a bond or a next hop of ECMP:
// both ends distinguish it from loss, in one direction and in both, until it works again.
func TestOneOfSeveralWays(t *testing.T) { bothStacks(t, oneOfSeveralWays) }

func oneOfSeveralWays(t *testing.T, newWorld func(n int) *world) {
	right := []string{"lossy", "multipath", "not-found"} // five packets in a row may be lost
	for _, ways := range []uint16{2, 3, 4} {
		for _, both := range []bool{false, true} {
			w := newWorld(4)
			a, b := w.nodes[0], w.nodes[1]
			w.run(time.Minute)
			w.drains = func(from, to *simulated, port uint16) bool {
				return (from == a && to == b || both && from == b && to == a) && port*40503>>8%ways == 0
			}
			const limit = 15 * time.Minute
			named := func(s *simulated) bool {
				return len(s.report.Findings) > 0 && s.report.Findings[0].Cause == "multipath"
			}
			began := w.now
			for !(named(a) && named(b)) && w.now.Sub(began) < limit {
				w.run(time.Second)
			}
			took := w.now.Sub(began)
			t.Logf("one of %d ways, both directions %v: named after %s", ways, both, took)
			if took >= limit {
				t.Errorf("one of %d ways, both directions %v: found %+v and %+v", ways, both, a.report.Findings, b.report.Findings)
			}
			w.run(10 * time.Minute)
			if !named(a) || !named(b) {
				t.Errorf("one of %d ways, both directions %v: ten minutes later %+v and %+v", ways, both, a.report.Findings, b.report.Findings)
			}
			for what := range w.reported {
				if cause := what[strings.LastIndex(what, " ")+1:]; !slices.Contains(right, cause) {
					t.Errorf("one of %d ways, both directions %v: reported %v", ways, both, w.reported)
				}
			}
			w.drains = nil
			w.run(3 * time.Minute)
			if len(a.report.Findings)+len(b.report.Findings) > 0 {
				t.Errorf("three minutes after the end of the fault: %+v and %+v", a.report.Findings, b.report.Findings)
			}
		}
	}
}

// An interface whose peer is down has no carrier; one that is down itself was taken down.
func TestRootNoCarrier(t *testing.T) {
	ns := nstest.New(t)
	ns.Exec("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "cable")
	ns.Exec("ip", "link", "set", "eth0", "up")
	carrier := func() (without string) {
		ns.Must(func() error { without = noCarrier("eth0"); return nil })
		return without
	}
	for _, c := range []struct{ command, want string }{{"ip link set cable up", ""}, {"ip link set cable down", "eth0"},
		{"ip link set eth0 down", ""}, {"ip link del eth0", ""}} {
		ns.Exec("sh", "-c", c.command)
		if got := carrier(); got != c.want {
			t.Errorf("after %s: %q has no carrier, want %q", c.command, got, c.want)
		}
	}
}
