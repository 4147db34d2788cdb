package controller

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
	"github.com/fairlead-cni/fairlead/ipam/pool"
	"github.com/fairlead-cni/fairlead/ipam/reclaim"
	"github.com/fairlead-cni/fairlead/test/apitest"
)

// machine is a node of the model: the state of its kernel and its disk, and the agent that runs there.
type machine struct {
	m    *model
	name string
	on   bool
	boot int
	// reach: it reaches the API server.
	reach bool
	// sandboxes are the existing network namespaces, by container.
	sandboxes map[string]*podSandbox
	// pending is on disk: owners whose addresses are to be released, by container.
	pending map[string]api.AllocationOwner
	// blind: this check of the agent sees no interfaces.
	blind bool
	agent *modelAgent
}

// podSandbox is a pod's network namespace.
type podSandbox struct {
	owner api.AllocationOwner
	// addrs are those on its interface. Only these are in use.
	addrs []string
	// other: the interface belongs to another plugin, such as macvlan, so the agent does not see it.
	other bool
}

// modelAgent is one process of the agent.
type modelAgent struct {
	*allocator.Allocator
	reclaim.Node
	now    time.Duration
	killAt int
	looked bool
}

func (mc *machine) bootID() string { return fmt.Sprint(mc.name, " boot ", mc.boot) }

// powerOn boots the machine. Its kubelet creates the Node, or adopts it, and reports Ready.
func (mc *machine) powerOn() {
	mc.on, mc.reach, mc.boot, mc.sandboxes = true, true, mc.boot+1, map[string]*podSandbox{}
	mc.m.register(mc)
	mc.startAgent()
}

// startAgent starts an agent process without the memory of earlier ones.
func (mc *machine) startAgent() {
	m := mc.m
	a := &modelAgent{}
	w := &wire{moved: make(chan struct{})}
	w.interfere(m.interfere(mc, func() bool {
		if a.killAt > 1 {
			a.killAt--
			return !mc.reach
		}
		return a.killAt == 1 || !mc.reach
	}))
	cfg := m.config(apitest.AdminToken)
	cfg.WrapTransport = func(next http.RoundTripper) http.RoundTripper { w.next = next; return w }
	client, err := dynamic.NewForConfig(cfg)
	must(m.t, err)
	cooling := []time.Duration{0, 0, time.Nanosecond, time.Hour}[m.random.IntN(4)]
	a.Allocator = allocator.New(allocator.Config{Store: allocation.NewKubernetes(client), Node: mc.name, Cooling: cooling,
		Log: logr.Discard()})
	a.Node = reclaim.Node{Allocator: a.Allocator, Grace: 10 * time.Second, Clock: func() time.Duration { return a.now },
		State: mc.see, Lock: func(api.AllocationOwner) (func(), bool) { return func() {}, true }}
	mc.agent = a
}

func (mc *machine) see(o api.AllocationOwner) (reclaim.OwnerState, error) {
	if mc.blind {
		return reclaim.OwnerState{BootID: mc.bootID(), NetnsGone: true}, nil
	}
	s := mc.sandboxes[o.ContainerID]
	return reclaim.OwnerState{BootID: mc.bootID(), NetnsGone: s == nil,
		Interface: s != nil && !s.other && len(s.addrs) > 0}, nil
}

// mayDie may kill the agent at one of its next requests, and returns a function that starts the next one.
func (mc *machine) mayDie() (after func()) {
	m, a := mc.m, mc.agent
	if !m.faulty || m.depth > 0 || m.random.IntN(8) > 0 {
		return func() {}
	}
	a.killAt = 1 + m.random.IntN(6)
	m.say("%s's agent is killed at request %d:", mc.name, a.killAt)
	return func() {
		m.done["killed"]++
		if mc.on && mc.agent == a {
			mc.startAgent()
		}
	}
}

// looks is the agent's periodic check: see agent/allocations.go.
func (mc *machine) looks(later time.Duration) {
	a := mc.agent
	if a == nil {
		return
	}
	defer mc.mayDie()()
	if mc.m.depth == 0 { // no time passes
		a.now += later
	}
	ctx := mc.m.t.Context()
	for _, container := range slices.Sorted(maps.Keys(mc.pending)) {
		if a.Release(ctx, mc.pending[container]) == nil {
			delete(mc.pending, container)
		}
	}
	suspicious, err := a.Suspicious()
	must(mc.m.t, err)
	if !suspicious && a.looked && !a.InDoubt(time.Hour) {
		return
	}
	held, err := a.Held(ctx)
	if err != nil {
		return
	}
	a.looked = true
	freed, _ := a.Reclaim(ctx, held)
	mc.m.done["freed by its node"] += len(freed)
}

// del is the runtime's DEL, which fails if there is no agent.
func (mc *machine) del(s *podSandbox) {
	if mc.agent == nil {
		return
	}
	defer mc.mayDie()()
	a := mc.agent
	s.addrs = nil
	if err := a.Release(mc.m.t.Context(), s.owner); err != nil {
		if a.killAt == 1 {
			return // killed before it could record the release; the runtime retries, or dies as well
		}
		mc.pending[s.owner.ContainerID] = s.owner
	}
	delete(mc.sandboxes, s.owner.ContainerID)
}

// kubelet removes sandboxes without a Pod, or with a finished one, and those of failed ADDs.
func (mc *machine) kubelet() {
	for _, container := range slices.Sorted(maps.Keys(mc.sandboxes)) {
		s := mc.sandboxes[container]
		p, err := mc.m.s.Admin().CoreV1().Pods("default").Get(mc.m.t.Context(), s.owner.Name, metav1.GetOptions{})
		if err != nil || string(p.UID) != s.owner.PodUID || p.Status.Phase == corev1.PodSucceeded || len(s.addrs) == 0 {
			mc.del(s)
		}
	}
}

// The following are steps of the nodes.

func (m *model) addPod() {
	mc := m.anyOf(func(mc *machine) bool { return mc.on && mc.agent != nil })
	if mc == nil || len(mc.sandboxes) > 4 {
		return
	}
	m.by(mc, func() {
		m.pods++
		name, container := fmt.Sprint("db-", m.random.IntN(6)), fmt.Sprint("c", m.pods)
		if m.s.Admin().CoreV1().Pods("default").Delete(m.t.Context(), name, now0()) == nil {
			m.say("pod %s is deleted by force", name)
		}
		p := m.podOn(name, mc.name)
		s := &podSandbox{other: m.random.IntN(3) == 0, owner: api.AllocationOwner{PodUID: string(p.UID), Namespace: "default",
			Name: name, ContainerID: container, IfName: "eth0", Network: "net", Node: mc.name, Netns: "/run/netns/" + container,
			BootID: mc.bootID()}}
		mc.sandboxes[container] = s
		m.say("ADD of %s, container %s on %s", name, container, mc.name)
		defer mc.mayDie()()
		a, boot := mc.agent, mc.boot
		given, err := a.Allocate(m.t.Context(), allocator.Request{Pools: []pool.Pool{m.pool}, Owner: s.owner})
		switch {
		case err != nil:
			m.say("ADD: %v", err)
		case a.killAt == 1 || mc.boot != boot || !mc.on || mc.sandboxes[container] != s || m.faulty && m.random.IntN(10) == 0:
			m.say("killed with %s in hand", given[0].Prefix.Addr())
			if mc.on && mc.agent == a {
				mc.startAgent()
			}
		default:
			m.say("%s has %s", container, given[0].Prefix.Addr())
			s.addrs = []string{given[0].Prefix.Addr().String()}
		}
	})
}

func now0() metav1.DeleteOptions {
	now := int64(0)
	return metav1.DeleteOptions{GracePeriodSeconds: &now}
}

// removePod is a DEL.
func (m *model) removePod() {
	mc := m.anyOf(func(mc *machine) bool { return mc.on && mc.agent != nil && len(mc.sandboxes) > 0 })
	if s := m.anyIn(mc); s != nil {
		m.by(mc, func() {
			m.say("DEL of %s on %s", s.owner.ContainerID, mc.name)
			mc.del(s)
			if m.random.IntN(2) == 0 {
				m.deletePodOf(s)
			}
		})
	}
}

func (m *model) deletePodOf(s *podSandbox) {
	options := now0()
	options.Preconditions = metav1.NewUIDPreconditions(s.owner.PodUID)
	if err := m.s.Admin().CoreV1().Pods("default").Delete(m.t.Context(), s.owner.Name, options); err == nil {
		m.say("Pod %s is deleted", s.owner.Name)
	}
}

// vanish is a DEL that is never called: the network namespace is deleted with its interfaces.
func (m *model) vanish() {
	mc := m.anyOf(func(mc *machine) bool { return mc.on && len(mc.sandboxes) > 0 })
	if s := m.anyIn(mc); s != nil {
		m.by(mc, func() {
			m.say("%s on %s is gone without a DEL", s.owner.ContainerID, mc.name)
			s.addrs = nil
			delete(mc.sandboxes, s.owner.ContainerID)
			if m.random.IntN(2) == 0 {
				m.deletePodOf(s)
			}
		})
	}
}

// forceDelete deletes a Pod whose containers keep running.
func (m *model) forceDelete() {
	if s := m.anyIn(m.anyOf(func(mc *machine) bool { return len(mc.sandboxes) > 0 })); s != nil {
		m.deletePodOf(s)
	}
}

// finish completes a Job's Pod while its sandbox still exists.
func (m *model) finish() {
	s := m.anyIn(m.anyOf(func(mc *machine) bool { return mc.on && len(mc.sandboxes) > 0 }))
	if s == nil {
		return
	}
	p, err := m.s.Admin().CoreV1().Pods("default").Get(m.t.Context(), s.owner.Name, metav1.GetOptions{})
	if err != nil || string(p.UID) != s.owner.PodUID {
		return
	}
	m.say("%s is done", s.owner.Name)
	p.Status.Phase = corev1.PodSucceeded
	_, err = m.s.Admin().CoreV1().Pods("default").UpdateStatus(m.t.Context(), p, metav1.UpdateOptions{})
	must(m.t, err)
}

func (m *model) restartAgent() {
	if mc := m.anyOf(func(mc *machine) bool { return mc.on }); mc != nil {
		m.by(mc, func() {
			if mc.agent != nil && m.random.IntN(2) == 0 {
				m.say("%s's agent is killed, and there is no other", mc.name)
				mc.agent = nil
				return
			}
			m.say("%s's agent is another process", mc.name)
			mc.startAgent()
		})
	}
}

func (m *model) agentLooks() {
	if mc := m.anyOf(func(mc *machine) bool { return mc.agent != nil }); mc != nil {
		m.by(mc, func() {
			mc.blind = m.faulty && !mc.blind && m.random.IntN(3) == 0
			m.say("%s's agent looks (blind: %t)", mc.name, mc.blind)
			mc.looks(20 * time.Second)
		})
	}
}

// powerOff powers a machine off at an arbitrary moment.
func (m *model) powerOff() {
	if mc := m.anyOf(func(mc *machine) bool { return mc.on }); mc != nil {
		m.say("%s is off", mc.name)
		if mc.agent != nil {
			mc.agent.killAt = 1
		}
		mc.on, mc.agent, mc.sandboxes = false, nil, nil
		if m.nodeIs(mc.name) {
			m.ready(mc.name, corev1.ConditionUnknown)
		}
	}
}

func (m *model) powerOn() {
	mc := m.anyOf(func(mc *machine) bool { return !mc.on })
	if mc == nil || m.depth > 0 && m.at == mc {
		return
	}
	m.say("%s is on", mc.name)
	mc.powerOn()
}

// partition cuts a node off from the API server, or reconnects it. Its pods keep running.
func (m *model) partition() {
	if mc := m.anyOf(func(mc *machine) bool { return mc.on }); mc != nil {
		if mc.reach = !mc.reach; !mc.reach && m.random.IntN(2) == 0 {
			if s := m.anyIn(mc); s != nil {
				defer m.deletePodOf(s)
			}
		}
		m.say("%s reaches the API server: %t", mc.name, mc.reach)
		if m.nodeIs(mc.name) {
			is := corev1.ConditionUnknown
			if mc.reach {
				is = corev1.ConditionTrue
			}
			m.ready(mc.name, is)
		}
	}
}
