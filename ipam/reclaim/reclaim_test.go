package reclaim

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
)

func suspect(name, uid, version, why string) Suspect {
	return Suspect{api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u1", ResourceVersion: version},
		Spec: api.IPAllocationSpec{Owner: api.AllocationOwner{PodUID: uid}}}, why}
}

// One check is never enough. Any difference at the second check starts over.
func TestTwoLooks(t *testing.T) {
	const grace = 10 * time.Second
	a := suspect("a", "1", "1", "gone")
	other := func(change func(*Suspect)) Suspect { s := a; change(&s); return s }
	for name, c := range map[string]struct {
		looks [][]Suspect // 6 s apart
		due   int         // how many are due at the last of them
	}{
		"one look":            {[][]Suspect{{a}}, 0},
		"within the grace":    {[][]Suspect{{a}, {a}}, 0},
		"after the grace":     {[][]Suspect{{a}, {a}, {a}}, 1},
		"lived in between":    {[][]Suspect{{a}, {}, {a}}, 0},
		"another one":         {[][]Suspect{{a}, {a}, {other(func(s *Suspect) { s.UID = "u2" })}}, 0},
		"changed":             {[][]Suspect{{a}, {a}, {other(func(s *Suspect) { s.ResourceVersion = "2" })}}, 0},
		"for another reason":  {[][]Suspect{{a}, {a}, {other(func(s *Suspect) { s.Why = "fenced" })}}, 0},
		"changed in between":  {[][]Suspect{{a}, {other(func(s *Suspect) { s.ResourceVersion = "2" })}, {a}}, 0},
		"its turn came later": {[][]Suspect{{a}, {a}, {a}, {a}}, 1},
	} {
		var l Tracker
		var due []Suspect
		for i, suspects := range c.looks {
			due = l.Due(time.Duration(i)*6*time.Second, grace, suspects)
		}
		if len(due) != c.due {
			t.Errorf("%s: %d are due, want %d", name, len(due), c.due)
		}
	}
}

func TestWhatANodeSees(t *testing.T) {
	ours := api.AllocationOwner{BootID: "now"}
	before := api.AllocationOwner{BootID: "before"}
	for name, c := range map[string]struct {
		state OwnerState
		owner api.AllocationOwner
		gone  bool
	}{
		"nothing is known":                 {OwnerState{BootID: "now"}, ours, false},
		"a macvlan pod lives":              {OwnerState{BootID: "now"}, ours, false},
		"its namespace is gone":            {OwnerState{BootID: "now", NetnsGone: true}, ours, true},
		"its interface is there":           {OwnerState{BootID: "now", NetnsGone: true, Interface: true}, ours, false},
		"it is on record":                  {OwnerState{BootID: "now", NetnsGone: true, Record: true}, ours, false},
		"of another boot":                  {OwnerState{BootID: "now"}, before, true},
		"of another boot, but on record":   {OwnerState{BootID: "now", Record: true}, before, false},
		"the boot of the owner is unknown": {OwnerState{BootID: "now"}, api.AllocationOwner{}, false},
		"the boot of the node is unknown":  {OwnerState{}, before, false},
	} {
		if why := c.state.Gone(c.owner); (why != "") != c.gone {
			t.Errorf("%s: gone because %q, want gone %t", name, why, c.gone)
		}
	}
}

func TestLostNodes(t *testing.T) {
	nodes := map[string]ClusterNode{"ready": {UID: "1", Ready: true}, "unready": {UID: "2"},
		"fenced": {UID: "3", Fenced: true}, "lie": {UID: "4", Fenced: true, Ready: true}}
	var all []*api.IPAllocation
	add := func(name, node string, phase api.AllocationPhase) {
		all = append(all, &api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: api.IPAllocationSpec{Phase: phase, Owner: api.AllocationOwner{Node: node}}})
	}
	for node := range nodes {
		add(node, node, api.PhaseAllocated)
	}
	add("deleted", "deleted", api.PhaseAllocated)
	add("no-owner", "", api.PhaseAllocated)
	add("cooling", "deleted", api.PhaseCooling)
	add("reserved", "deleted", api.PhaseReserved)
	got := map[string]string{}
	for _, s := range Lost(all, nodes) {
		got[s.Name] = s.Why
	}
	if len(got) != 2 || got["deleted"] != "its Node was deleted" || got["fenced"] != "its Node is fenced (UID 3)" {
		t.Errorf("lost are %v, want those of the deleted and of the fenced node", got)
	}
	if got := Lost(all, nil); got != nil {
		t.Errorf("of a cluster without Nodes nothing is known, and %v are lost", got)
	}
}

// Names do not identify owners, except owners that have only a name: those keep their address.
func TestLives(t *testing.T) {
	pods := []Pod{{UID: "u1", Namespace: "ns", Name: "a"}, {UID: "u2", Namespace: "ns", Name: "done", Finished: true},
		{UID: "u3", Namespace: "ns", Name: "static", ConfigHash: "h"}}
	for name, c := range map[string]struct {
		owner api.AllocationOwner
		lives bool
	}{
		"its Pod":                     {api.AllocationOwner{PodUID: "u1", Namespace: "ns", Name: "a"}, true},
		"another of the same name":    {api.AllocationOwner{PodUID: "u0", Namespace: "ns", Name: "a"}, false},
		"finished":                    {api.AllocationOwner{PodUID: "u2", Namespace: "ns", Name: "done"}, false},
		"static, by the hash":         {api.AllocationOwner{PodUID: "h", Namespace: "ns", Name: "static"}, true},
		"by its name":                 {api.AllocationOwner{Namespace: "ns", Name: "a"}, true},
		"by its name, and it is gone": {api.AllocationOwner{Namespace: "ns", Name: "b"}, false},
		"not of Kubernetes":           {api.AllocationOwner{}, false},
	} {
		if got := Lives(c.owner, pods); got != c.lives {
			t.Errorf("%s: lives %t, want %t", name, got, c.lives)
		}
	}
}

// node is a Node whose owners' state is set by the test.
type node struct {
	*Node
	states map[string]OwnerState
	busy   map[string]bool
	now    time.Duration
	store  allocation.Store
}

func newNode(t *testing.T) *node {
	t.Helper()
	store, err := allocation.NewDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	n := &node{states: map[string]OwnerState{}, busy: map[string]bool{}, store: store}
	n.Node = &Node{Allocator: allocator.New(allocator.Config{Store: store, Node: "n", Log: logr.Discard()}),
		Grace: 10 * time.Second, Clock: func() time.Duration { return n.now },
		State: func(o api.AllocationOwner) (OwnerState, error) {
			s, known := n.states[o.ContainerID]
			if !known {
				return s, errors.New("the node can't be read")
			}
			return s, nil
		},
		Lock: func(o api.AllocationOwner) (func(), bool) { return func() {}, !n.busy[o.ContainerID] }}
	return n
}

func (n *node) take(t *testing.T, container, ip string) {
	t.Helper()
	if _, err := n.store.Create(t.Context(), api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: ip},
		Spec: api.IPAllocationSpec{Address: ip, Pool: "p", Phase: api.PhaseAllocated,
			Owner: api.AllocationOwner{ContainerID: container, IfName: "eth0", Network: "net", Node: "n"}}}); err != nil {
		t.Fatal(err)
	}
}

// look compares once, 6 s after the previous time, and returns the addresses that are left.
func (n *node) look(t *testing.T) (left string, freed int, err error) {
	t.Helper()
	n.now += 6 * time.Second
	held, err := n.Allocator.Held(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	gone, err := n.Reclaim(t.Context(), held)
	list, lerr := n.store.List(t.Context(), allocation.Filter{})
	if lerr != nil {
		t.Fatal(lerr)
	}
	for _, a := range list {
		left += a.Spec.Owner.ContainerID
	}
	return left, len(gone), err
}

// A node reclaims only what was gone at both checks and at the final one.
func TestNodeReclaims(t *testing.T) {
	n := newNode(t)
	for i, c := range strings.Split("abcd", "") {
		n.take(t, c, "10.2.0."+string(rune('1'+i)))
	}
	if _, _, err := n.look(t); err == nil {
		t.Error("a node that can't be read is no reason")
	}
	n.states = map[string]OwnerState{"a": {}, "b": {NetnsGone: true}, "c": {NetnsGone: true}, "d": {NetnsGone: true}}
	if suspicious, err := n.Suspicious(); !suspicious || err != nil {
		t.Errorf("what the allocator knows is suspicious %t, %v", suspicious, err)
	}
	for range 2 {
		if left, _, err := n.look(t); left != "abcd" || err != nil {
			t.Errorf("freed too early: left are %s, %v", left, err)
		}
	}
	n.busy["c"] = true
	last := map[string]int{}
	state := n.State
	n.State = func(o api.AllocationOwner) (OwnerState, error) { // d is back between the check and the release
		if last[o.ContainerID]++; o.ContainerID == "d" && last["d"] == 2 {
			return OwnerState{}, nil
		}
		return state(o)
	}
	if left, freed, err := n.look(t); left != "acd" || freed != 1 || err != nil {
		t.Errorf("left are %s (%d freed), %v; want acd: a lives, a request works on c, and d is back", left, freed, err)
	}
	n.busy["c"] = false
	if left, _, err := n.look(t); left != "a" || err != nil {
		t.Errorf("left are %s, %v; want a", left, err)
	}
	if left, freed, _ := n.look(t); left != "a" || freed != 0 {
		t.Errorf("left are %s, %d freed", left, freed)
	}
	if suspicious, err := n.Suspicious(); suspicious || err != nil {
		t.Errorf("nothing is gone, and it is suspicious: %t %v", suspicious, err)
	}
}

func TestOccupied(t *testing.T) {
	podCIDR, at := netip.MustParsePrefix("10.0.1.0/24"), time.Unix(1000, 0)
	gone, again := ClusterNode{}, ClusterNode{UID: "2", Created: at}
	inside, outside := netip.MustParseAddr("10.0.1.7"), netip.MustParseAddr("fd00::7")
	for what, c := range map[string]struct {
		node ClusterNode
		pod  Pod
		want bool
	}{
		"an address of it":                  {again, Pod{IPs: []netip.Addr{outside, inside}, Created: at.Add(time.Hour)}, true},
		"others":                            {gone, Pod{IPs: []netip.Addr{outside}}, false},
		"not known yet":                     {gone, Pod{Created: at}, true},
		"not known, older than the Node":    {again, Pod{Created: at}, true},
		"not known, of the Node of now":     {again, Pod{Created: at.Add(time.Second)}, false},
		"finished":                          {gone, Pod{IPs: []netip.Addr{inside}, Finished: true}, false},
		"of the host, not known yet":        {gone, Pod{HostNetwork: true}, false},
		"of the host, which has one itself": {gone, Pod{HostNetwork: true, IPs: []netip.Addr{inside}}, false},
	} {
		if got := Occupied(podCIDR, c.node, []Pod{{IPs: []netip.Addr{outside}}, c.pod}); got != c.want {
			t.Errorf("%s: %t, want %t", what, got, c.want)
		}
	}
}
