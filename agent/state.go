package agent

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/agent/inputs"
)

// state is what CNI requests and health checks may know of the loop. It is
// replaced, never changed.
type state struct {
	podCIDRs []netip.Prefix
	podMTU   int
	// addRefused says why no pod may be added, though the rest works.
	addRefused error
	// notReady says what does not work. nil means that the node serves pods.
	notReady error
	// degraded says what does not work though pods are served.
	degraded error
	snapshot *inputs.Snapshot
}

// publish makes the outcome of a round known to CNI requests and health checks.
func (l *loop) publish(snapshot *inputs.Snapshot, d Desired, conflict error, o outcome) {
	s := &state{podCIDRs: l.own.PodCIDRs, podMTU: d.PodMTU, addRefused: conflict, snapshot: snapshot,
		notReady: errors.Join(conflict, o.pods, o.host),
		degraded: errors.Join(o.peers, strays(l.own, d.OVSDB.Pods), snapshot.Trouble)}
	before := l.state.Swap(s)
	if d.PodMTU != 0 { // else nothing was computed
		l.tellProblems(d.Problems)
	}
	l.metrics.published(s, d)
	l.tellChange("not ready", before.notReady, s.notReady)
	l.tellChange("ready, but something does not work", before.degraded, s.degraded)
	if s.notReady == nil {
		l.once()
	}
}

func (l *loop) tellProblems(problems []string) {
	for _, p := range problems {
		if !slices.Contains(l.problems, p) {
			l.log.Info("a node is refused", "problem", p)
		}
	}
	for _, p := range l.problems {
		if !slices.Contains(problems, p) {
			l.log.Info("a node is no longer refused", "problem", p)
		}
	}
	l.problems = problems
}

// tellChange logs an error when it appears, changes or goes, and not in every
// round.
func (l *loop) tellChange(what string, before, now error) {
	switch {
	case now == nil && before != nil:
		l.log.Info("over: "+what, "was", before.Error())
	case now != nil && (before == nil || before.Error() != now.Error()):
		l.log.Error(now, what)
	}
}

// once closes firstOK at the first good round.
func (l *loop) once() {
	select {
	case <-l.firstOK:
	default:
		close(l.firstOK)
	}
}

// ready returns nil when a pod could be added now.
func (l *loop) ready() error {
	if err := l.state.Load().notReady; err != nil {
		return err
	}
	if !l.serving.Load() {
		return errors.New("the node is as it should be; CNI requests are not answered yet")
	}
	return nil
}
