package controller

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/pool"
	"github.com/fairlead-cni/fairlead/test/chaos"
)

// model is a cluster with random faults: real are the API server, the allocator of each node, the rules by which its
// agent reclaims (package reclaim), and two controllers of which each may believe to be the leader. Simulated are the
// machines: which are running, and which pod has an interface with which address there. The store is checked against
// that state.
//
// Everything runs in one goroutine. Within a step another one may be interleaved at any request, so that no read and
// write are atomic where several processes work in reality.
type model struct {
	*cluster
	random    *rand.Rand
	pool      pool.Pool
	machines  []*machine
	steppers  []*stepper
	pods      int // created so far
	story     []string
	depth     int
	at        any // the actor of the outer step: a machine or a stepper
	faulty    bool
	done      map[string]int
	violation string
}

// modelTime is how long schedules run in each run of the suite, and modelMost the time limit for covering everything
// that schedules must cover. A schedule has modelSteps.
const (
	modelTime  = 8 * time.Second
	modelMost  = 2 * time.Minute
	modelSteps = 60
)

// TestKubeModel runs random schedules. To repeat one, set its seed: SEED=123 go test -run TestKubeModel ./controller
func TestKubeModel(t *testing.T) {
	c := newCluster(t)
	limit, seeds := chaos.Time(t, modelTime), chaos.Seeds(t)
	first := []*stepper{c.stepper(), c.stepper()}
	done, schedules := map[string]int{}, 0
	unseen := func() (all []string) {
		for _, what := range []string{"freed by its node", "freed by a controller", "in between", "answer lost", "killed"} {
			if done[what] == 0 {
				all = append(all, what)
			}
		}
		return all
	}
	more := func(ran time.Duration) bool { return ran < limit || len(unseen()) > 0 && ran < modelMost }
	for began := time.Now(); len(seeds) > 0 || !chaos.OneSeed() && more(time.Since(began)); schedules++ {
		seed := rand.Uint64()
		if len(seeds) > 0 {
			seed, seeds = seeds[0], seeds[1:]
		}
		m := &model{cluster: c, random: rand.New(rand.NewPCG(seed, 0)), pool: modelPool(t), steppers: first, done: done}
		if m.run(); m.violation != "" {
			t.Fatalf("SEED=%d: %s\nafter\n%s", seed, m.violation, strings.Join(m.story, "\n"))
		}
	}
	t.Logf("%d schedules; what happened: %v", schedules, done)
	if missing := unseen(); len(missing) > 0 && !chaos.OneSeed() {
		t.Errorf("never %s: the test shows too little", strings.Join(missing, ", "))
	}
	c.empty(t)
}

// modelPool is small, so that released addresses are soon allocated again.
func modelPool(t *testing.T) pool.Pool {
	t.Helper()
	p, err := pool.Read(*poolOf("model", "10.2.9.1", "10.2.9.14"))
	must(t, err)
	return p
}

func (m *model) run() {
	m.t.Helper()
	m.empty(m.t)
	m.node("anchor")
	for i := range 3 {
		mc := &machine{m: m, name: fmt.Sprint("m", i), pending: map[string]api.AllocationOwner{}}
		m.machines = append(m.machines, mc)
		mc.powerOn()
	}
	for _, s := range m.steppers {
		s.begin()
		s.wire.set()
		before, after := m.interfere(s, s.dead)
		s.wire.interfere(notOfTheCache(before), notOfTheCache(after))
	}
	m.faulty = true
	for range modelSteps {
		m.step()
		if m.violation != "" {
			return
		}
	}
	m.faulty = false
	m.settle()
}

// say logs an event.
func (m *model) say(format string, args ...any) {
	m.story = append(m.story, strings.Repeat("    ", m.depth)+fmt.Sprintf(format, args...))
}

// step executes one step, and checks the invariants.
func (m *model) step() {
	steps := []struct {
		weight int
		do     func()
	}{
		{20, m.addPod}, {8, m.removePod}, {8, m.vanish}, {6, m.forceDelete}, {4, m.finish}, {6, m.restartAgent},
		{14, m.agentLooks}, {20, m.controllerLooks}, {4, m.restartController}, {5, m.powerOff}, {5, m.powerOn},
		{4, m.partition}, {4, m.deleteNodeOfOff}, {3, m.fenceOff}, {3, m.reregister}, {5, m.podGC}, {3, m.cutWatch},
	}
	total := 0
	for _, s := range steps {
		total += s.weight
	}
	n := m.random.IntN(total)
	for _, s := range steps {
		if n -= s.weight; n < 0 {
			s.do()
			break
		}
	}
	m.check()
}

// interfere decides what happens at a request of who: the request, or its response, is lost, who is killed, or another
// step runs first.
func (m *model) interfere(who any, dead func() bool) (before, after func(*http.Request) error) {
	lost := func(r *http.Request, what string, oneIn int) error {
		if dead() {
			return errors.New("the process is dead")
		}
		if m.faulty && m.at == who && m.random.IntN(oneIn) == 0 {
			m.say("%s: %s %s", what, r.Method, r.URL.Path)
			m.done[what]++
			return errors.New(what)
		}
		return nil
	}
	before = func(r *http.Request) error {
		if m.faulty && m.at == who && m.depth == 0 && m.random.IntN(6) == 0 {
			m.depth++
			m.done["in between"]++
			m.say("before %s %s:", r.Method, r.URL.Path)
			at := m.at
			m.step()
			m.at = at
			m.depth--
		}
		return lost(r, "request lost", 40)
	}
	return before, func(r *http.Request) error { return lost(r, "answer lost", 15) }
}

// by runs do as who, unless the outer step is who's.
func (m *model) by(who any, do func()) {
	if m.depth > 0 && m.at == who {
		return
	}
	before := m.at
	m.at = who
	do()
	m.at = before
}

// check checks the store against the simulated state.
func (m *model) check() {
	if m.violation != "" {
		return
	}
	stored := map[string]api.IPAllocation{}
	for _, a := range m.all() {
		stored[a.Spec.Address] = a
	}
	owners := map[string]string{}
	for _, mc := range m.machines {
		for _, s := range mc.sandboxes {
			for _, ip := range s.addrs {
				who, a := s.owner.ContainerID+" on "+mc.name, stored[ip]
				if other := owners[ip]; other != "" {
					m.violation = fmt.Sprintf("%s has two live owners, %s and %s", ip, other, who)
				}
				owners[ip] = who
				o := a.Spec.Owner
				if a.Spec.Phase != api.PhaseAllocated || o.ContainerID != s.owner.ContainerID || o.Node != mc.name {
					m.violation = fmt.Sprintf("%s is of %s, which lives, and the store has it %q of %s %s", ip, who, a.Spec.Phase,
						o, o.ContainerID)
				}
			}
		}
	}
}

// settle ends all faults, and lets all components finish: nothing leaks.
func (m *model) settle() {
	m.say("all faults end")
	for _, mc := range m.machines {
		mc.reach, mc.blind = true, false
		if !mc.on && m.random.IntN(3) == 0 {
			mc.powerOn()
		} else if !mc.on {
			m.loseForGood(mc)
		}
		if !mc.on {
			continue
		}
		if mc.agent == nil {
			mc.startAgent()
		}
		if !m.nodeIs(mc.name) {
			m.register(mc)
		}
		mc.kubelet()
	}
	m.podGC()
	for _, s := range m.steppers {
		s.wire.set()
	}
	for range 4 {
		for _, mc := range m.machines {
			mc.looks(20 * time.Second)
		}
		for _, s := range m.steppers {
			m.controllerLooksOnce(s, grace)
		}
	}
	if m.check(); m.violation != "" {
		return
	}
	want, got := []string{}, []string{}
	for _, mc := range m.machines {
		for _, s := range mc.sandboxes {
			for _, ip := range s.addrs {
				want = append(want, ip+" "+s.owner.ContainerID)
			}
		}
	}
	for _, a := range m.all() {
		if a.Spec.Phase == api.PhaseAllocated {
			got = append(got, a.Spec.Address+" "+a.Spec.Owner.ContainerID)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		m.violation = fmt.Sprintf("in the end held are %v, and these live: %v", got, want)
	}
}

// anyOf is one of the machines for which is returns true, nil if there is none.
func (m *model) anyOf(is func(*machine) bool) *machine {
	var fit []*machine
	for _, mc := range m.machines {
		if is(mc) {
			fit = append(fit, mc)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	return fit[m.random.IntN(len(fit))]
}

// anyIn is one of a machine's sandboxes.
func (m *model) anyIn(mc *machine) *podSandbox {
	if mc == nil || len(mc.sandboxes) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(mc.sandboxes))
	return mc.sandboxes[names[m.random.IntN(len(names))]]
}

func (m *model) nodeIs(name string) bool {
	_, err := m.s.Admin().CoreV1().Nodes().Get(m.t.Context(), name, metav1.GetOptions{})
	return err == nil
}

// The following are steps of the cluster.

func (m *model) controllerLooks() {
	s := m.steppers[m.random.IntN(len(m.steppers))]
	later := func() time.Duration {
		return []time.Duration{time.Second, grace / 2, grace, 10 * grace}[m.random.IntN(4)]
	}
	m.by(s, func() { m.controllerLooksOnce(s, later()) })
	if m.depth == 0 && m.random.IntN(2) == 0 { // so that two checks may follow each other closely
		m.step()
		m.by(s, func() { m.controllerLooksOnce(s, later()) })
	}
}

func (m *model) controllerLooksOnce(s *stepper, later time.Duration) {
	if m.depth > 0 {
		later = 0 // no time passes
	}
	hears := []string{}
	for _, r := range []string{"nodes", "ipallocations"} {
		if !s.wire.isCut(r) {
			hears = append(hears, r)
		}
	}
	if len(hears) > 0 {
		s.hear(hears...)
	}
	s.now += later
	kill := m.faulty && m.depth == 0 && m.random.IntN(8) == 0
	if kill {
		s.killAt = 1 + m.random.IntN(8)
	}
	m.say("controller %d looks, %s later (killed at request %d, hears %v)", slices.Index(m.steppers, s), later, s.killAt, hears)
	before := s.freedSoFar()
	s.pass(m.t.Context())
	s.sweep.sweep(m.t.Context(), listOf[api.IPAllocation](s.world.allocations))
	m.done["freed by a controller"] += s.freedSoFar() - before
	if kill {
		m.done["killed"]++
		s.killAt = 0
		s.begin()
	}
}

func (m *model) restartController() {
	s := m.steppers[m.random.IntN(len(m.steppers))]
	m.by(s, func() {
		m.say("controller %d is another one", slices.Index(m.steppers, s))
		s.begin()
	})
}

func (m *model) cutWatch() {
	s := m.steppers[m.random.IntN(len(m.steppers))]
	m.by(s, func() {
		cut := [][]string{{}, {"nodes"}, {"ipallocations"}, {"nodes", "ipallocations"}}[m.random.IntN(4)]
		m.say("controller %d hears nothing of %v", slices.Index(m.steppers, s), cut)
		s.wire.set(cut...)
	})
}

func (m *model) deleteNodeOfOff() {
	if mc := m.anyOf(func(mc *machine) bool { return !mc.on }); mc != nil {
		m.say("the Node of %s, which is off, is deleted", mc.name)
		m.deleteNode(m.t.Context(), mc.name)
	}
}

func (m *model) fenceOff() {
	mc := m.anyOf(func(mc *machine) bool { return !mc.on })
	if mc == nil || !m.nodeIs(mc.name) {
		return
	}
	m.say("%s, which is off, is fenced", mc.name)
	m.ready(mc.name, corev1.ConditionUnknown)
	m.fence(mc.name, true)
}

// reregister deletes a Node by mistake; its kubelet recreates it within the grace period.
func (m *model) reregister() {
	if mc := m.anyOf(func(mc *machine) bool { return mc.on && mc.reach }); mc != nil {
		m.say("the Node of %s, which is on, is deleted, and is made again", mc.name)
		m.deleteNode(m.t.Context(), mc.name)
		if m.depth > 0 {
			m.register(mc)
			return
		}
		if s := m.anyIn(mc); s != nil && m.random.IntN(2) == 0 {
			m.deletePodOf(s)
		}
		m.allLook(time.Second)
		m.register(mc)
		m.allLook(time.Second)
	}
}

// allLook makes both controllers check.
func (m *model) allLook(later time.Duration) {
	for _, s := range m.steppers {
		m.by(s, func() { m.controllerLooksOnce(s, later) })
	}
}

func (m *model) register(mc *machine) {
	if !m.nodeIs(mc.name) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: mc.name}}
		_, err := m.s.Admin().CoreV1().Nodes().Create(m.t.Context(), n, metav1.CreateOptions{})
		must(m.t, err)
	}
	m.fence(mc.name, false)
	m.ready(mc.name, corev1.ConditionTrue)
}

// loseForGood is what an administrator does with a machine that will not come back.
func (m *model) loseForGood(mc *machine) {
	if m.random.IntN(2) == 0 || !m.nodeIs(mc.name) {
		m.deleteNode(m.t.Context(), mc.name)
		return
	}
	m.ready(mc.name, corev1.ConditionUnknown)
	m.fence(mc.name, true)
}

// podGC deletes the Pods of Nodes that are deleted or fenced, as kube-controller-manager does.
func (m *model) podGC() {
	m.say("Pods of lost nodes are deleted")
	nodes, err := m.s.Admin().CoreV1().Nodes().List(m.t.Context(), metav1.ListOptions{})
	must(m.t, err)
	kept := map[string]bool{}
	for _, n := range nodes.Items {
		kept[n.Name] = len(n.Spec.Taints) == 0
	}
	list, err := m.s.Admin().CoreV1().Pods("default").List(m.t.Context(), metav1.ListOptions{})
	must(m.t, err)
	for _, p := range list.Items {
		if !kept[p.Spec.NodeName] {
			m.deletePod(p.Name)
		}
	}
}

// notOfTheCache exempts the requests that fill the controller's cache, which come from other goroutines.
func notOfTheCache(f func(*http.Request) error) func(*http.Request) error {
	return func(r *http.Request) error {
		switch r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:] {
		case "nodes", "ipallocations", "ippools", "servicecidrs":
			return nil
		}
		return f(r)
	}
}

// isCut reports whether the watch of a resource is cut off.
func (w *wire) isCut(resource string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut[resource]
}

// freedSoFar counts the Events, which nothing else reads.
func (s *stepper) freedSoFar() int {
	for len(s.events.Events) > 0 {
		<-s.events.Events
		s.count++
	}
	return s.count
}

// dead reports whether the process was killed, counting the requests until it is.
func (s *stepper) dead() bool {
	if s.killAt > 1 {
		s.killAt--
		return false
	}
	return s.killAt == 1
}
