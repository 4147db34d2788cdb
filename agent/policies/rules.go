// Package policies keeps the switch's flows of policies up to date, by key: package policy/compile determines which
// rules apply to the node's pods, and this package makes flows of them, including those that send a pod's packets to be
// judged. It has no client and no switch.
package policies

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/policing"
	"github.com/fairlead-cni/fairlead/openflow/tables"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// Rules are the rules that apply to the node's pods. One goroutine uses them.
type Rules struct {
	source   *feed.Objects
	compiler *compile.Compiler
	known    bool // all objects have been read
	// own are the pods, as in the API, that the compiler has in another form or not at all; namespaces are those of the
	// API.
	own        map[policy.PodKey]*policy.Pod
	namespaces map[string]policy.Namespace
	nodeState  NodeState
	pods       map[policy.PodKey]*pod // of this node
	taken      map[uint32]bool        // numbers of pods
	problems   []string
	dirty      map[policy.PodKey]struct{}
	tightened  bool                  // what Tightened returns
	ended      map[connKey]time.Time // until when
	verdicts   verdicts
	since      time.Time // when the first of the changes in the last Update was handed over
	units
}

// pod is a pod with ports on this node.
type pod struct {
	number uint32
	ports  []Port
	flows  int  // that match it
	closed bool // its labels are unknown
	// diverted are the ports whose packets are judged.
	diverted []string
}

// NodeState is the state of the node that the flows depend on.
type NodeState struct {
	Ports []Port
	// Node are the source addresses with which the node's own processes reach its pods.
	Node []netip.Addr
	// Services: Open vSwitch translates ClusterIPs.
	Services bool
}

// Port is a port of a pod on the bridge.
type Port struct {
	Pod    policy.PodKey
	UID    string // the pod's, as kubelet passed it; may be empty
	HostIf string
	At     tables.Pod
}

func (p Port) equal(q Port) bool {
	return p.Pod == q.Pod && p.UID == q.UID && p.HostIf == q.HostIf && p.At.Port == q.At.Port && p.At.MAC == q.At.MAC &&
		p.At.Bridged == q.At.Bridged && p.At.VLAN == q.At.VLAN && slices.Equal(p.At.Addrs, q.At.Addrs)
}

// unknownPod is the number of pods about which nothing is known: no flow of a tier lets their packets pass.
const unknownPod = 1

// NewRules returns Rules that know nothing yet.
func NewRules(source *feed.Objects) *Rules {
	return &Rules{source: source, compiler: compile.New(), own: map[policy.PodKey]*policy.Pod{},
		namespaces: map[string]policy.Namespace{}, pods: map[policy.PodKey]*pod{}, taken: map[uint32]bool{unknownPod: true},
		dirty: map[policy.PodKey]struct{}{}, ended: map[connKey]time.Time{}, units: newUnits(),
		verdicts: verdicts{counters: newCounters(), logged: map[policy.PodKey]uint32{}}}
}

// Known reports whether all objects have been read: until then it is not known what applies to any pod.
func (r *Rules) Known() bool { return r.known }

// Read reports whether the next Update has all objects.
func (r *Rules) Read() bool { return r.known || r.source.Read() }

// Units are all units.
func (r *Rules) Units() map[uint32]openflow.Unit { return r.units.all() }

// Update takes the changed objects and the current ports of the node's pods; nil means that these are unchanged. It
// returns the units that differ; one without flows is removed.
func (r *Rules) Update(state *NodeState, now time.Time) map[uint32]openflow.Unit {
	objects, since, known := r.source.Take()
	r.since = since
	r.known = r.known || known
	for key, v := range objects {
		r.setObject(key, v)
	}
	if state != nil {
		r.setNodeState(*state)
	}
	if !r.known {
		return nil
	}
	for key := range r.dirty {
		r.setPod(key)
	}
	r.compile()
	for key := range r.dirty {
		r.divert(key)
	}
	r.dirty = map[policy.PodKey]struct{}{} // it contained all pods of the cluster
	r.logDenied()
	r.lift(now)
	return r.changed()
}

// Since is when the first of the object changes in the last Update was handed over; zero for none.
func (r *Rules) Since() time.Time { return r.since }

// Tightened reports whether, because of changes since the last call, connections may be open that the rules deny.
func (r *Rules) Tightened() bool {
	is := r.tightened
	r.tightened = false
	return is
}

// Problems are sentences about what in policies that changed since the last call is not understood, or does not fit
// into flows.
func (r *Rules) Problems() []string {
	out := append(r.problems, r.compiler.Problems()...)
	r.problems = nil
	return out
}

// setObject stores the new state of an object.
func (r *Rules) setObject(key feed.Key, v any) {
	switch o := v.(type) {
	case *policy.Pod:
		r.own[o.PodKey] = o
		r.dirty[o.PodKey] = struct{}{}
	case policy.Namespace:
		r.namespaces[o.Name] = o
		r.compiler.SetNamespace(o)
	case policy.Node:
		r.compiler.SetNode(o)
	case policy.Policy:
		r.compiler.SetPolicy(o)
		for _, p := range o.Problems {
			r.problems = append(r.problems, o.Ref.String()+": "+p)
		}
	default:
		r.deleteObject(key)
	}
}

func (r *Rules) deleteObject(key feed.Key) {
	namespace, name, namespaced := strings.Cut(key.Name, "/")
	if !namespaced {
		namespace, name = "", key.Name
	}
	switch key.Kind {
	case feed.Pod:
		r.deletePod(policy.PodKey{Namespace: namespace, Name: name})
	case feed.Namespace:
		delete(r.namespaces, name)
		if r.source.Complete { // it still has the label that every namespace has
			r.compiler.SetNamespace(policy.FromNamespace(namespaceOf(policy.PodKey{Namespace: name})))
		} else {
			r.compiler.DeleteNamespace(name)
		}
	case feed.Node:
		r.compiler.DeleteNode(name)
	default:
		r.compiler.DeletePolicy(policy.Ref{Kind: key.Kind, Namespace: namespace, Name: name})
	}
}

// setNodeState sets the current ports.
func (r *Rules) setNodeState(now NodeState) {
	all := now.Services != r.nodeState.Services
	if all || !slices.Equal(now.Node, r.nodeState.Node) || !r.has(sharedKey) {
		r.put(sharedKey, policing.Shared(now.Node))
		r.tightened = true // the node may have lost an address
	}
	r.nodeState = now
	ports := map[policy.PodKey][]Port{}
	for _, p := range now.Ports {
		if p.Pod.Name != "" { // no policy selects what is not a Kubernetes pod
			ports[p.Pod] = append(ports[p.Pod], p)
		}
	}
	for key, at := range ports {
		if r.pods[key] == nil {
			r.pods[key] = &pod{number: r.number(key)}
		}
		if p := r.pods[key]; all || !slices.EqualFunc(p.ports, at, Port.equal) {
			p.ports = at
			r.dirty[key] = struct{}{}
		}
	}
	for key, p := range r.pods {
		if len(ports[key]) == 0 && len(p.ports) > 0 {
			p.ports = nil
			r.dirty[key] = struct{}{}
		}
	}
}

// number returns a number for a pod that no other has. It is derived from the pod's name, so that a starting agent
// computes the same numbers as the switch has.
func (r *Rules) number(key policy.PodKey) uint32 {
	sum := sha256.Sum256([]byte(key.String()))
	n := binary.BigEndian.Uint32(sum[:])
	for n == 0 || r.taken[n] {
		n++
	}
	r.taken[n] = true
	return n
}

// object is what the API has under a pod's name; nil if it has none.
func (r *Rules) object(key policy.PodKey) *policy.Pod {
	if o := r.own[key]; o != nil {
		return o
	}
	if p := r.compiler.Pod(key); p != nil && !p.Local {
		return p
	}
	return nil
}

// deletePod notes that the API no longer has a pod of that name.
func (r *Rules) deletePod(key policy.PodKey) {
	delete(r.own, key)
	if r.object(key) != nil {
		r.compiler.DeletePod(key)
	}
	r.dirty[key] = struct{}{}
}

// setPod passes a pod to the compiler, and keeps its object if the compiler does not.
func (r *Rules) setPod(key policy.PodKey) {
	o := r.object(key)
	if is := r.effectivePod(key, o); is == nil {
		r.compiler.DeletePod(key)
	} else {
		r.compiler.SetPod(is)
	}
	if o == nil || r.compiler.Pod(key) == o {
		delete(r.own, key)
	} else {
		r.own[key] = o
	}
}

// effectivePod returns what policies take a pod for whose API object is o; nil for none.
func (r *Rules) effectivePod(key policy.PodKey, o *policy.Pod) *policy.Pod {
	p := r.pods[key]
	if p == nil || len(p.ports) == 0 {
		r.setClosed(key, p, false)
		if o == nil || !o.Local {
			return o
		}
		elsewhere := *o
		elsewhere.Local = false
		return &elsewhere
	}
	if o == nil && !r.source.Complete {
		r.setClosed(key, p, true)
		return nil
	}
	r.setClosed(key, p, false)
	if o != nil && !slices.ContainsFunc(p.ports, r.owned) {
		// The pod of that name on this node is gone, or not in the API yet; one of another node may be a peer.
		if o.Local {
			return nil
		}
		return o
	}
	if _, there := r.namespaces[key.Namespace]; r.source.Complete && !there {
		r.compiler.SetNamespace(policy.FromNamespace(namespaceOf(key)))
	}
	here := policy.Pod{}
	if o != nil {
		here = *o
	}
	here.PodKey, here.Local, here.HostNetwork, here.Addrs = key, true, false, nil
	for _, port := range p.ports {
		if r.owned(port) {
			here.Addrs = append(here.Addrs, policing.Pod{Pod: port.At}.Own()...)
		}
	}
	return &here
}

func namespaceOf(key policy.PodKey) *corev1.Namespace {
	n := &corev1.Namespace{}
	n.Name = key.Namespace
	return n
}

func (r *Rules) setClosed(key policy.PodKey, p *pod, is bool) {
	if p == nil || p.closed == is {
		return
	}
	p.closed = is
	r.tightened = r.tightened || is
	for _, f := range closed(key) {
		if is {
			r.put(f.Match, flowsOf(f, p.number))
		} else {
			r.put(f.Match, nil)
		}
	}
}

// compile takes the changes of rules. Pods that become matched by a flow, or by none, become dirty.
func (r *Rules) compile() {
	changes := r.compiler.Changes()
	r.tightened = r.tightened || changes.Forbids
	for _, m := range changes.Delete {
		if m.Kind == compile.Address {
			r.forgetPeer(m)
			continue
		}
		r.count(m, -1)
		r.countFlows(m, nil, nil)
		r.put(m, nil)
	}
	for _, f := range changes.Put {
		if f.Kind == compile.Address {
			r.putPeer(f)
			continue
		}
		if !r.has(f.Match) {
			r.count(f.Match, 1)
		}
		number := uint32(0)
		if p := r.pods[f.Pod]; p != nil {
			number = p.number
		}
		flows := r.toDeniedTable(f, flowsOf(f, number))
		r.countFlows(f.Match, &f, flows)
		r.put(f.Match, flows)
	}
}

func (r *Rules) count(m compile.Match, n int) {
	if p := r.pods[m.Pod]; p != nil {
		p.flows += n
		r.dirty[m.Pod] = struct{}{}
	}
}

// owned reports whether a port belongs, as far as is known, to the pod that the API has under that name. The
// replacement of a StatefulSet's pod may have a port here, and other labels, before the API's watch shows it.
func (r *Rules) owned(port Port) bool {
	o := r.object(port.Pod)
	return o == nil || r.source.Complete || o.Is(port.UID)
}

// divert sends a pod's packets to be judged if a rule applies to it, or closes it, and drops pods that are gone.
func (r *Rules) divert(key policy.PodKey) {
	p := r.pods[key]
	if p == nil {
		return
	}
	var now []string
	for _, port := range p.ports {
		number := p.number
		switch {
		case !r.owned(port):
			number = unknownPod
		case p.flows == 0 && !p.closed:
			continue
		}
		// The packets of such a port were not judged, or as those of another pod.
		r.tightened = r.tightened || number == unknownPod || !slices.Contains(p.diverted, port.HostIf)
		r.put(portKey(port.HostIf), policing.Pod{Pod: port.At, Number: number}.Flows(r.nodeState.Services))
		now = append(now, port.HostIf)
	}
	for _, before := range p.diverted {
		if !slices.Contains(now, before) {
			r.put(portKey(before), nil)
		}
	}
	p.diverted = now
	r.put(passKey(key), r.passes(key, p))
	if len(p.ports) == 0 && p.flows == 0 {
		delete(r.pods, key)
		delete(r.taken, p.number)
	}
}

// passes are the flows by which packets of a judged pod pass the tier NetworkPolicy if it is not isolated.
func (r *Rules) passes(key policy.PodKey, p *pod) (out []openflow.Flow) {
	if len(p.diverted) == 0 || p.closed {
		return nil
	}
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		isolated := compile.Match{Direction: d, Kind: compile.Isolated, Tier: policy.NetworkPolicy, Pod: key}
		closed := compile.Match{Direction: d, Kind: compile.Closed, Tier: policy.Admin, Pod: key}
		if !r.has(isolated) && !r.has(closed) {
			out = append(out, direction(d).NotIsolated(p.number))
		}
	}
	return out
}

// Zones are the conntrack zones of judged pods.
func (r *Rules) Zones() []uint16 {
	zones := map[uint16]bool{}
	for _, p := range r.pods {
		for _, port := range p.ports {
			if slices.Contains(p.diverted, port.HostIf) {
				zones[policing.Pod{Pod: port.At}.Zone()] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(zones))
}
