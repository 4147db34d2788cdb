package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/apply"
	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// faulty is a Node with the product's steps and fake appliers.
type faulty struct {
	*Node
	db       *fakeDatabase
	appliers []*fakeApplier
}

func newFaulty(t *testing.T) *faulty {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "me.yaml"), []byte(meManifest), 0o644); err != nil {
		t.Fatal(err)
	}
	source, err := inputs.NewDirectory(dir, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	f := &faulty{Node: newTestNode(t, api.AgentConfig{OVSBridge: "br-int"}, source),
		db: &fakeDatabase{changed: make(chan struct{}, 1)}}
	f.links.transport = link.Transport{Name: "test0", MTU: 1500} // there is no such interface: it is kept
	f.links.known = true
	f.Node.db = f.db
	f.steps, _ = newSteps(nil, f.Config, f.NodeName, f.Source, nil, f.Metrics, f.Log)
	f.steps.closers = nil
	lost := func() {
		for _, a := range f.appliers {
			a.there = "unknown flow"
		}
	}
	for _, group := range [][]step{f.steps.pods, f.steps.host} {
		for i := range group {
			group[i].Applier = f.fake(i, group[i].Name())
		}
	}
	for _, a := range f.appliers {
		a.lost = lost
	}
	return f
}

func (f *faulty) fake(place int, name string) apply.Applier {
	plain := fakeApplier{name: name}
	switch {
	case name == "ovsdb" && place == 0:
		r := &fakeRecords{plain, f.db}
		f.appliers = append(f.appliers, &r.fakeApplier)
		return r
	case name == "ovsdb":
		s := &fakeStale{plain, f.db}
		f.appliers = append(f.appliers, &s.fakeApplier)
		return s
	case name == "flows":
		s := &fakeSwitch{fakeApplier: plain, db: f.db}
		f.steps.flows = s
		f.appliers = append(f.appliers, &s.fakeApplier)
		return s
	}
	f.appliers = append(f.appliers, &plain)
	return &plain
}

// settled fails the test unless every applier has the desired state in place, and the node reports that it serves pods.
func (f *faulty) settled(t *testing.T, when, want string) {
	t.Helper()
	for _, a := range f.appliers {
		if a.there != want {
			t.Errorf("%s: %s has %q in place, want %q", when, a.name, a.there, want)
		}
	}
	if s := f.Board.Load(); s.NotReady != nil || s.Degraded != nil || s.OVSDown != nil {
		t.Errorf("%s: not ready %v, degraded %v, Open vSwitch %v", when, s.NotReady, s.Degraded, s.OVSDown)
	}
}

// blameless fails the test if something that pods depend on was reported as an external change: there was none, and an
// applier's half-done work is not one.
func (f *faulty) blameless(t *testing.T) {
	t.Helper()
	for i, s := range f.steps.pods {
		if a := f.appliers[i]; s.affects == affectsPods && a.hands > 0 {
			t.Errorf("%s reports %d external changes, and there was none", a.name, a.hands)
		}
	}
}

// prompt fails the test unless each failure was repaired by a retry, not by the next resync.
func (f *faulty) prompt(t *testing.T) {
	t.Helper()
	for _, a := range f.appliers {
		if a.healed > f.Intervals.RetryMost || !a.failed.IsZero() {
			t.Errorf("%s was healed %s after it failed, want a retry within %s", a.name, a.healed, f.Intervals.RetryMost)
		}
	}
}

// ask makes a CNI request as a runtime does: it retries until the request succeeds.
func (f *faulty) ask(t *testing.T, c Change) {
	t.Helper()
	for range 5 {
		if err := f.Apply(t.Context(), c); err == nil {
			return
		}
	}
	t.Errorf("%+v was refused five times", c)
}

// heals runs the life cycle of two pods, and an external change, with faults, and requires everything to be in place at
// the end.
func heals(t *testing.T, what string, arm func(*faulty)) {
	t.Run(what, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := newFaulty(t)
			arm(f)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); f.Run(ctx) }()
			defer func() { cancel(); <-done }()
			a, b := podNamed("a"), podNamed("b")
			f.ask(t, Change{Add: &a})
			f.ask(t, Change{Add: &b})
			time.Sleep(time.Minute) // virtual time: retries, and rounds that verify
			f.settled(t, "with two pods", fmt.Sprint(sortedHosts(a, b)))
			f.blameless(t)
			f.ask(t, Change{Del: attachments.KeyOf(a)})
			for _, one := range f.appliers {
				one.there = "something else"
			}
			time.Sleep(time.Minute)
			f.settled(t, "after a DEL and external changes", fmt.Sprint(sortedHosts(b)))
			f.prompt(t)
		})
	})
}

func podNamed(id string) api.Attachment {
	return api.Attachment{ContainerID: id, IfName: "eth0", HostIf: link.HostName(id, "eth0")}
}

// One transient failure of an applier, of any kind and at any call: a later round repairs it.
func TestOneFaultHeals(t *testing.T) {
	for i, a := range newFaulty(t).appliers {
		for call := 1; call <= 4; call++ {
			for _, kind := range kindsOf(a.name) {
				heals(t, fmt.Sprintf("%d %s %s at call %d", i, a.name, kind, call), func(f *faulty) {
					f.appliers[i].faults = map[int]fault{call: kind}
				})
			}
		}
	}
}

// Two appliers fail, in either order and in the same round or in two.
func TestTwoFaultsHeal(t *testing.T) {
	all := newFaulty(t).appliers
	for i, a := range all {
		for j, b := range all {
			heals(t, fmt.Sprintf("%d %s then %d %s", i, a.name, j, b.name), func(f *faulty) {
				f.appliers[i].faults = map[int]fault{1: half, 2: fails}
				f.appliers[j].faults = map[int]fault{1: fails, 2: half}
			})
		}
	}
}

func kindsOf(name string) []fault {
	if name == "flows" {
		return []fault{fails, half, hangs, gone}
	}
	return []fault{fails, half, hangs}
}

// A bridged pod that is not in the eBPF maps is refused, and a routed pod of the same round is not.
func TestBridgedPodIsRefusedAlone(t *testing.T) {
	f := newFaulty(t)
	routed, bridged := podNamed("r"), podNamed("b")
	bridged.Bridged = true
	waiting := []request{{Change{Add: &routed}, make(chan error, 1)}, {Change{Add: &bridged}, make(chan error, 1)}}
	for i, s := range f.steps.pods {
		if s.affects == affectsBridged {
			f.appliers[i].faults = map[int]fault{1: fails}
		}
	}
	if err := f.round(t.Context(), slices.Clone(waiting)); !errors.Is(err, errFault) {
		t.Errorf("the round reports %v", err)
	}
	for i, want := range []error{nil, errFault} {
		if err := <-waiting[i].done; !errors.Is(err, want) {
			t.Errorf("request %d was answered with %v, want %v", i, err, want)
		}
		if len(waiting[i].done) > 0 {
			t.Errorf("request %d was answered twice", i)
		}
	}
}

// A pod whose ADD is refused because policies are not known is not on the node.
func TestPodIsRefusedUntilPoliciesAreKnown(t *testing.T) {
	f, a, unknown := newFaulty(t), podNamed("a"), errors.New("policies are not known")
	f.steps.flows.(*fakeSwitch).waits = unknown
	waiting := []request{{Change{Add: &a}, make(chan error, 1)}}
	if err := f.round(t.Context(), slices.Clone(waiting)); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting[0].done; !errors.Is(err, unknown) || len(f.db.pods) > 0 {
		t.Errorf("it was answered with %v, want %v, and on the node are %v", err, unknown, f.db.pods)
	}
}

// A node that lacks something for pods or the host is not ready; one that does not reach other nodes is ready.
func TestFaultNamesWhatItAffects(t *testing.T) {
	for i := range newFaulty(t).appliers {
		f := newFaulty(t)
		f.appliers[i].faults = map[int]fault{1: fails}
		if err := f.round(t.Context(), nil); !errors.Is(err, errFault) {
			t.Fatalf("%d %s: the round reports %v", i, f.appliers[i].name, err)
		}
		affects, s := slices.Concat(f.steps.pods, f.steps.host)[i].affects, f.Board.Load()
		ready := affects == affectsPeers || affects == affectsBridged
		if (s.NotReady == nil) != ready || (s.Degraded != nil) != ready {
			t.Errorf("%d %s: not ready %v, degraded %v", i, f.appliers[i].name, s.NotReady, s.Degraded)
		}
	}
}

// dueSwitch is a fakeSwitch that always requests a round.
type dueSwitch struct {
	fakeSwitch
	asked int
}

func (d *dueSwitch) Due() bool { d.asked++; return true }

// Every watcher is queried, even if an earlier one already requests a round.
func TestAllWatchersAreAsked(t *testing.T) {
	var first, second dueSwitch
	s := steps{pods: []step{{Applier: &first}}, host: []step{{Applier: &second}}}
	if !s.due() || first.asked != 1 || second.asked != 1 {
		t.Errorf("they were asked %d times and %d times", first.asked, second.asked)
	}
}

// A problem that an applier cannot repair does not count as resolved because a round failed before it.
func TestDegradedLastsThroughFailedRounds(t *testing.T) {
	f := newFaulty(t)
	last := f.appliers[len(f.appliers)-1]
	last.degraded = errors.New("pods have another MTU")
	f.appliers[0].faults = map[int]fault{2: fails}
	for i, failed := range []bool{false, true, false} {
		f.progress.verify = true
		if err := f.round(t.Context(), nil); (err != nil) != failed {
			t.Fatalf("round %d: %v", i, err)
		}
		if got := f.Board.Load().Degraded; !errors.Is(got, last.degraded) {
			t.Errorf("round %d: degraded is %v", i, got)
		}
	}
	last.degraded = nil
	if _ = f.round(t.Context(), nil); f.Board.Load().Degraded != nil {
		t.Errorf("it is over, and degraded is %v", f.Board.Load().Degraded)
	}
}

// An external change is reverted by the next round that verifies, and counted once.
func TestExternalChangeIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); f.Run(ctx) }()
		defer func() { cancel(); <-done }()
		a := podNamed("a")
		f.ask(t, Change{Add: &a})
		time.Sleep(time.Minute)
		for _, one := range f.appliers {
			one.there = "something else"
		}
		time.Sleep(time.Minute)
		for _, one := range f.appliers {
			if one.hands != 1 {
				t.Errorf("%s reports %d external changes, want 1", one.name, one.hands)
			}
		}
	})
}

func sortedHosts(pods ...api.Attachment) (hosts []string) {
	for _, a := range pods {
		hosts = append(hosts, a.HostIf)
	}
	slices.Sort(hosts)
	return hosts
}
