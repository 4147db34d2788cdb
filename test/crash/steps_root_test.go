package crash

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/crash/nodestate"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// delays after a step at which the agent is killed. Consecutive steps are 0.1 to 3 ms apart.
var delays = []time.Duration{0, 150 * time.Microsecond, 600 * time.Microsecond, 2 * time.Millisecond}

// The agent is killed exactly when a step of ADD or DEL is seen, and a little later.
func TestRootKilledAtEveryStep(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	c := up(t)
	w := c.watch(t)
	stopWatching := c.watchAddresses(t)
	defer stopWatching()
	pods := []string{podYAML("x", node), podYAML("y", node), podYAML("z", node)}
	for _, s := range []step{leaseMade, vethMade, portMade, portNumber, flowsMade, addDone} {
		t.Run(string(s), func(t *testing.T) {
			for _, d := range delays {
				c.killedAt(t, w, s, d, func() { c.apply(t, pods...) })
				c.remove(t, pods...)
				c.settle(t)
			}
			c.check(t)
		})
	}
	for _, s := range []step{flowsGone, portRetired, leaseGone, delDone, portGone, vethGone} {
		t.Run(string(s), func(t *testing.T) {
			for _, d := range delays {
				c.apply(t, pods...)
				c.settle(t)
				c.killedAt(t, w, s, d, func() { c.remove(t, pods...) })
			}
		})
	}
}

// killedAt calls begin, kills the agent at the step, starts it again, and checks the node when the runner has finished.
func (c cluster) killedAt(t *testing.T, w *watcher, s step, delay time.Duration, begin func()) {
	t.Helper()
	c.readyForCNI(t)
	killed := w.arm(s, c.agentPID(t), delay)
	begin()
	wait(t, killed, string(s))
	c.kill(t)
	c.settle(t)
	c.check(t)
}

// wait waits until something is done; what describes it in the failure message.
func wait(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	limit := labtest.Patience(t, time.Minute)
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("not after %s: %s", limit, what)
	}
}

// readyForCNI waits until the agent answers CNI requests.
func (c cluster) readyForCNI(t *testing.T) {
	t.Helper()
	c.readyForCNIOn(t, node)
}

func (c cluster) readyForCNIOn(t *testing.T, node string) {
	t.Helper()
	must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
	eventually(t, 10*time.Second, func() []string {
		// The network is of a version without STATUS: a DEL of an unknown attachment is called instead.
		if _, err := c.CNI(labtest.Within(t, time.Minute), node, lab.DEL, "default/unknown"); err != nil {
			return []string{err.Error()}
		}
		return nil
	})
}

// A runtime that dies with the agent calls no DEL. The next agent completes the attachment or removes it, and removes
// it when the pod's network namespace is gone.
func TestRootKilledAndNoDEL(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	c := up(t)
	w := c.watch(t)
	outcomes := map[string]int{}
	for _, s := range []step{leaseMade, vethMade, portMade, portNumber, flowsMade} {
		for _, d := range delays {
			outcomes[c.killedWithoutDEL(t, w, s, d)]++
		}
	}
	// On a busy machine kills come late, when the attachment is complete. Only an incomplete one tests the recovery.
	for range 50 {
		if outcomes["nothing"] > 0 {
			break
		}
		outcomes[c.killedWithoutDEL(t, w, leaseMade, 0)]++
	}
	t.Logf("what the next agent left: %v", outcomes)
	if outcomes["nothing"] == 0 {
		t.Error("no attachment was half made: this tested nothing")
	}
}

// killedWithoutDEL kills the agent at a step of an ADD, without a DEL afterwards, and returns the next agent's result.
// At the first step ovsdb-server hangs meanwhile, so that the agent gets no further than the veth.
func (c cluster) killedWithoutDEL(t *testing.T, w *watcher, s step, d time.Duration) (outcome string) {
	t.Helper()
	c.readyForCNI(t)
	hang := s == leaseMade && d == 0
	if hang {
		must(t, unix.Kill(lab.OVSDB.PID(c.node), unix.SIGSTOP))
	}
	killed := w.arm(s, c.agentPID(t), d)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		c.CNI(t.Context(), node, lab.ADD, "default/hand") // fails in most cases: the agent dies
	}()
	wait(t, answered, "an answer to ADD")
	wait(t, killed, string(s))
	if hang {
		must(t, unix.Kill(lab.OVSDB.PID(c.node), unix.SIGCONT))
	}
	c.kill(t)
	rec, err := c.Records().Load("default/hand")
	must(t, err)
	must(t, c.Records().Forget("default/hand"))
	t.Logf("killed %s after %s", d, s)
	outcome = c.wholeOrNothing(t, rec)
	must(t, c.node.RemoveNetns(rec.Netns))
	eventually(t, 5*time.Second, func() []string { // the kernel does that a little later
		if slices.Contains(c.state(t).Veths, hostIf(rec)) {
			return []string{"the veth is still there"}
		}
		return nil
	})
	c.kill(t)
	c.check(t)
	return outcome
}

func hostIf(rec *sandbox.Record) string { return nodestate.Pod{ContainerID: rec.ContainerID}.HostIf() }

// wholeOrNothing waits until the node has all that the sandbox needs or nothing of it, and returns which.
func (c cluster) wholeOrNothing(t *testing.T, rec *sandbox.Record) (outcome string) {
	t.Helper()
	c.readyForCNI(t)
	others := c.pods(t)
	eventually(t, 5*time.Second, func() []string {
		s := c.state(t)
		if _, ok := s.Ports[hostIf(rec)]; !ok {
			outcome = "nothing"
			s.Netns = slices.DeleteFunc(s.Netns, func(path string) bool { return path == rec.Netns })
			return c.ref.Differences(s, others)
		}
		outcome = "whole"
		rec.IPs = nil
		for _, addr := range slices.SortedFunc(maps.Keys(s.Leases), byFamily) {
			if s.Leases[addr] == rec.ContainerID {
				rec.IPs = append(rec.IPs, addr)
			}
		}
		if len(rec.IPs) != 2 {
			return []string{fmt.Sprintf("there is a port, and the leases are %v", rec.IPs)}
		}
		return c.ref.Differences(s, append(others, c.pod(t, rec)))
	})
	return outcome
}

func byFamily(a, b string) int { return netip.MustParseAddr(a).Compare(netip.MustParseAddr(b)) }
