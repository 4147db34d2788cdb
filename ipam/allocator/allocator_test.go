package allocator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// makePool is a pool from start to end; v4 in a /16, v6 in a /64.
func makePool(t testing.TB, name, start, end string, vlan int) pool.Pool {
	t.Helper()
	subnet := api.SubnetInfo{Gateway: "10.2.255.254", PrefixLength: 16, VLAN: vlan}
	if strings.Contains(start, ":") {
		subnet = api.SubnetInfo{Gateway: "fe80::1", PrefixLength: 64, VLAN: vlan}
	}
	p, err := pool.Read(api.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: api.IPPoolSpec{IPRanges: []api.IPRange{{Start: start, End: end}}, SubnetInfo: &subnet}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func directory(t testing.TB) allocation.Store {
	t.Helper()
	d, err := allocation.NewDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func newAllocator(s allocation.Store) *Allocator {
	return New(Config{Store: s, Node: "n1", Cooling: time.Hour, Log: logr.Discard()})
}

func ownerNamed(name string) api.AllocationOwner {
	return api.AllocationOwner{Namespace: "default", Name: name, ContainerID: "c-" + name, IfName: "eth0", Network: "net"}
}

func allocate(t testing.TB, a *Allocator, name string, pools ...pool.Pool) string {
	t.Helper()
	got, err := a.Allocate(t.Context(), Request{Pools: pools, Owner: ownerNamed(name)})
	if err != nil {
		t.Fatal(err)
	}
	return prefixes(got)
}

func prefixes(list []Address) string {
	var out []string
	for _, g := range list {
		out = append(out, g.Prefix.String())
	}
	return strings.Join(out, " ")
}

func release(t testing.TB, a *Allocator, name string) {
	t.Helper()
	if err := a.Release(t.Context(), ownerNamed(name)); err != nil {
		t.Fatal(err)
	}
}

// phases is the content of the store: "10.2.0.1 Allocated a, …".
func phases(t testing.TB, s allocation.Store) string {
	t.Helper()
	list, err := s.List(context.WithoutCancel(t.Context()), allocation.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, a := range list {
		out = append(out, fmt.Sprintf("%s %s %s", a.Spec.Address, a.Spec.Phase, a.Spec.Owner.Name))
	}
	return strings.Join(out, ", ")
}

func TestAllocateSaysAllOfAnAddress(t *testing.T) {
	s := directory(t)
	v4, v6 := makePool(t, "v4", "10.2.0.7", "10.2.0.7", 9), makePool(t, "v6", "fd00::7", "fd00::7", 9)
	got, err := newAllocator(s).Allocate(t.Context(), Request{Pools: []pool.Pool{v6, v4}, Owner: ownerNamed("a")})
	if err != nil {
		t.Fatal(err)
	}
	want := []Address{
		{netip.MustParsePrefix("10.2.0.7/16"), netip.MustParseAddr("10.2.255.254"), 9, "v4", "", api.MAC{}},
		{netip.MustParsePrefix("fd00::7/64"), netip.MustParseAddr("fe80::1"), 9, "v6", "", api.MAC{}},
	}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%+v, want %+v", got, want)
	}
	held, err := newAllocator(s).Held(t.Context())
	if err != nil || len(held) != 2 || held[0].Spec.Owner.Node != "n1" {
		t.Errorf("Held: %+v, %v", held, err)
	}
}

// A repeated ADD returns the same addresses, even from a restarted agent.
func TestAllocateAgain(t *testing.T) {
	s := directory(t)
	v4, v6 := makePool(t, "v4", "10.2.0.1", "10.2.0.99", 0), makePool(t, "v6", "fd00::1", "fd00::99", 0)
	a := newAllocator(s)
	first := allocate(t, a, "a", v4, v6)
	before := phases(t, s)
	for name, again := range map[string]*Allocator{"same": a, "successor": newAllocator(s)} {
		if got := allocate(t, again, "a", v4, v6); got != first || phases(t, s) != before {
			t.Errorf("%s: %s, then %s; %s", name, first, got, phases(t, s))
		}
	}
	if other := allocate(t, a, "b", v4, v6); other == first {
		t.Errorf("two pods have %s", first)
	}
	// The address was released externally and allocated to another node.
	list, err := a.Held(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range list {
		if h.Spec.Owner.Name != "a" {
			continue
		}
		if err := s.Delete(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		h.Spec.Owner = api.AllocationOwner{ContainerID: "c-a", IfName: "eth0", Network: "net", Node: "n2"}
		if _, err := s.Create(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	if got := allocate(t, a, "a", v4, v6); got == first {
		t.Errorf("%s is another node's by now", got)
	}
}

// A restarted container, maybe in another boot, keeps its address, and its owner's details are updated. Another
// network, or another kind of owner of the same name, has its own.
func TestAllocateAgainElsewhere(t *testing.T) {
	s := directory(t)
	v4 := makePool(t, "v4", "10.2.0.7", "10.2.0.9", 0)
	o := ownerNamed("a")
	o.Netns, o.BootID, o.IPAMOnly = "/run/netns/1", "boot1", true
	give := func(a *Allocator, o api.AllocationOwner) string {
		t.Helper()
		got, err := a.Allocate(t.Context(), Request{Pools: []pool.Pool{v4}, Owner: o})
		if err != nil {
			t.Fatal(err)
		}
		return prefixes(got)
	}
	first := give(newAllocator(s), o)
	o.Netns, o.BootID = "/run/netns/2", "boot2"
	a := newAllocator(s)
	if again := give(a, o); again != first {
		t.Errorf("given %s, before %s", again, first)
	}
	held, err := a.Held(t.Context())
	if err != nil || len(held) != 1 || held[0].Spec.Owner.Netns != "/run/netns/2" || held[0].Spec.Owner.BootID != "boot2" {
		t.Errorf("held: %+v, %v", held, err)
	}
	other, main := o, o
	other.Network, main.IPAMOnly = "another", false
	if x, y := give(a, other), give(a, main); x == first || y == first || x == y {
		t.Errorf("three owners have %s, %s and %s", first, x, y)
	}
	if err := a.Release(t.Context(), main); err != nil {
		t.Fatal(err)
	}
	held, err = a.Held(t.Context())
	if err != nil || len(held) != 2 || !held[0].Spec.Owner.IPAMOnly || !held[1].Spec.Owner.IPAMOnly {
		t.Errorf("held: %+v, %v", held, err)
	}
}

// A pool in a VLAN in which the other family has none is not used for a dual-stack pod.
func TestCommonVLAN(t *testing.T) {
	a := newAllocator(directory(t))
	ten, twenty := makePool(t, "ten", "10.2.0.1", "10.2.0.9", 10), makePool(t, "twenty", "10.2.0.11", "10.2.0.19", 20)
	six := makePool(t, "six", "fd00::1", "fd00::9", 20)
	for name, pools := range map[string][]pool.Pool{"a": {ten, twenty, six}, "b": {six, ten, twenty}} {
		got, err := a.Allocate(t.Context(), Request{Pools: pools, Owner: ownerNamed(name)})
		if err != nil || len(got) != 2 || got[0].Pool != "twenty" || got[1].Pool != "six" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	_, err := a.Allocate(t.Context(), Request{Pools: []pool.Pool{ten, six}, Owner: ownerNamed("c")})
	if !errors.As(err, new(*VLANError)) {
		t.Errorf("without a common VLAN: %v", err)
	}
}

// A mark set by a node with a fast clock does not last until that clock's time.
func TestOver(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		phase api.AllocationPhase
		left  time.Duration
		want  bool
	}{
		{api.PhaseAllocated, -time.Hour, false}, {api.PhaseCooling, -time.Second, true}, {api.PhaseCooling, time.Hour, false},
		{api.PhaseConflict, 0, true}, {api.PhaseConflict, conflictPeriod, false},
		{api.PhaseConflict, conflictPeriod + time.Minute, false}, // clocks differ slightly
		// Set by a fast clock that has been corrected.
		{api.PhaseConflict, 365 * 24 * time.Hour, true}, {api.PhaseCooling, 365 * 24 * time.Hour, true},
		{api.PhaseCooling, api.MaxCoolingPeriod + time.Minute, false},
	} {
		until := api.NewMicroTime(now.Add(c.left))
		h := api.IPAllocation{Spec: api.IPAllocationSpec{Phase: c.phase, Until: &until}}
		if got := Expired(h, now); got != c.want {
			t.Errorf("%s with %s left: over %t", c.phase, c.left, got)
		}
	}
}

// A Create whose request timed out may be executed after the pod was deleted. Held then lists it, and it can be
// released.
func TestMadeTooLate(t *testing.T) {
	s := directory(t)
	a := newAllocator(s)
	release(t, a, "a") // this DEL finds nothing
	late := ownerNamed("a")
	late.Node = "n1"
	_, err := s.Create(t.Context(), api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: "10.2.0.7"},
		Spec: api.IPAllocationSpec{Address: "10.2.0.7", Pool: "v4", Phase: api.PhaseAllocated, Owner: late}})
	if err != nil {
		t.Fatal(err)
	}
	if held, err := a.Held(t.Context()); err != nil || len(held) != 1 {
		t.Fatalf("held are %+v, %v", held, err)
	}
	release(t, a, "a")
	if now := phases(t, s); now != "10.2.0.7 Cooling a" {
		t.Errorf("after the release %s", now)
	}
}

func TestCooling(t *testing.T) {
	s := directory(t)
	p := makePool(t, "p", "10.2.0.1", "10.2.0.3", 0)
	a := newAllocator(s)
	first := allocate(t, a, "a", p)
	release(t, a, "a")
	if got := phases(t, s); !strings.HasSuffix(got, " Cooling a") {
		t.Errorf("after the DEL: %s", got)
	}
	held, err := s.List(t.Context(), allocation.Filter{})
	if err != nil || held[0].Spec.Until == nil || time.Until(held[0].Spec.Until.Time) < 59*time.Minute ||
		Expired(held[0], time.Now()) {
		t.Errorf("until when does it cool? %+v, %v", held, err)
	}
	release(t, a, "a") // a second DEL does nothing
	release(t, newAllocator(s), "a")
	if got := phases(t, s); !strings.HasSuffix(got, " Cooling a") {
		t.Errorf("after the second DEL: %s", got)
	}
	for _, name := range []string{"b", "c"} {
		if got := allocate(t, a, name, p); got == first {
			t.Errorf("%s got %s, which cools, before the pool was full", name, got)
		}
	}
	if got := allocate(t, a, "d", p); got != first {
		t.Errorf("the full pool gave %s, want %s", got, first)
	}
	_, err = a.Allocate(t.Context(), Request{Pools: []pool.Pool{p}, Owner: ownerNamed("e")})
	var full *ExhaustedError
	const want = "pool p is exhausted: 3 of 3 addresses are in use. Extend spec.ipRanges, or delete pods that use the pool"
	if !errors.As(err, &full) || err.Error() != want {
		t.Errorf("a full pool: %v, want %s", err, want)
	}
	a.Cooling = time.Nanosecond
	release(t, a, "b")
	if got := allocate(t, a, "e", p); strings.Contains(got, first) {
		t.Errorf("%s is d's", got)
	}
	a.Cooling = 0
	release(t, a, "e")
	if got := phases(t, s); strings.Contains(got, "Cooling") || strings.Contains(got, " e") {
		t.Errorf("without a cooling period: %s", got)
	}
}

// Several pools of a family are tried in order.
func TestFallsThrough(t *testing.T) {
	s := directory(t)
	one, two := makePool(t, "one", "10.2.0.1", "10.2.0.1", 0), makePool(t, "two", "10.2.1.1", "10.2.1.1", 0)
	a := newAllocator(s)
	if got := allocate(t, a, "a", one, two); got != "10.2.0.1/16" {
		t.Errorf("first: %s", got)
	}
	if got := allocate(t, a, "b", one, two); got != "10.2.1.1/16" {
		t.Errorf("second: %s", got)
	}
	_, err := a.Allocate(t.Context(), Request{Pools: []pool.Pool{one, two}, Owner: ownerNamed("c")})
	if want := "pool one is exhausted: 1 of 1 addresses are in use; pool two is exhausted: 1 of 1 addresses are in use. Extend"; err == nil ||
		!strings.HasPrefix(err.Error(), want) {
		t.Errorf("third: %v, want %s…", err, want)
	}
}

// Both families or none.
func TestAllOrNothing(t *testing.T) {
	s := directory(t)
	v4, v6 := makePool(t, "v4", "10.2.0.1", "10.2.0.9", 0), makePool(t, "v6", "fd00::1", "fd00::1", 0)
	a := newAllocator(s)
	allocate(t, a, "a", v4, v6)
	before := phases(t, s)
	_, err := a.Allocate(t.Context(), Request{Pools: []pool.Pool{v4, v6}, Owner: ownerNamed("b")})
	var full *ExhaustedError
	if !errors.As(err, &full) || full.Pools[0].Pool != "v6" || phases(t, s) != before {
		t.Errorf("%v; the store has %s, before it had %s", err, phases(t, s), before)
	}
	other := makePool(t, "tagged", "fd00::2", "fd00::9", 7)
	_, err = a.Allocate(t.Context(), Request{Pools: []pool.Pool{v4, other}, Owner: ownerNamed("b")})
	var vlan *VLANError
	if !errors.As(err, &vlan) || !strings.Contains(err.Error(), "pool tagged has no addresses in VLAN 0") || phases(t, s) != before {
		t.Errorf("%v; the store has %s, before it had %s", err, phases(t, s), before)
	}
}

// Two pools with the same addresses share them: no address is allocated twice, and the search ends.
func TestPoolsThatOverlap(t *testing.T) {
	s := directory(t)
	p, q := makePool(t, "p", "10.2.0.1", "10.2.0.3", 0), makePool(t, "q", "10.2.0.2", "10.2.0.3", 0)
	a := newAllocator(s)
	seen := map[string]bool{allocate(t, a, "1", q): true}
	for _, name := range []string{"2", "3"} {
		seen[allocate(t, a, name, p)] = true
	}
	if len(seen) != 3 {
		t.Errorf("three pods have %v", seen)
	}
	_, err := a.Allocate(t.Context(), Request{Pools: []pool.Pool{p}, Owner: ownerNamed("4")})
	if err == nil || !strings.Contains(err.Error(), "pool p is exhausted: 3 of 3") {
		t.Errorf("the fourth: %v", err)
	}
}

func TestPodIPs(t *testing.T) {
	s := directory(t)
	v4, more := makePool(t, "v4", "10.2.0.1", "10.2.0.9", 0), makePool(t, "more", "10.2.1.1", "10.2.1.9", 5)
	v6 := makePool(t, "v6", "fd00::1", "fd00::9", 5)
	a := newAllocator(s)
	ask := func(name string, pools []pool.Pool, ips ...string) (string, error) {
		r := Request{Pools: pools, Owner: ownerNamed(name)}
		for _, ip := range ips {
			r.PodIPs = append(r.PodIPs, netip.MustParseAddr(ip))
		}
		got, err := a.Allocate(t.Context(), r)
		return prefixes(got), err
	}
	both, dual := []pool.Pool{v4, more}, []pool.Pool{v4, more, v6}
	if got, err := ask("a", both, "10.2.1.4"); got != "10.2.1.4/16" || err != nil {
		t.Errorf("in the second pool: %s, %v", got, err)
	}
	if got, err := ask("a", both, "10.2.1.4"); got != "10.2.1.4/16" || err != nil {
		t.Errorf("again: %s, %v", got, err)
	}
	// The other family is allocated in the VLAN of the requested address.
	if got, err := ask("b", dual, "fd00::5"); !strings.HasPrefix(got, "10.2.1.") || !strings.HasSuffix(got, " fd00::5/64") || err != nil {
		t.Errorf("of one family: %s, %v", got, err)
	}
	before := phases(t, s)
	for want, c := range map[string]struct {
		pools []pool.Pool
		ips   []string
	}{
		"address 10.2.1.4 of the annotation ipam.antrea.io/pod-ips is allocated to pod default/a on node n1 (Allocated): delete": {both, []string{"10.2.1.4"}},
		"10.9.9.9 is outside of pool v4; 10.9.9.9 is outside of pool more. Ask for an address of the pools v4, more":             {both, []string{"10.9.9.9"}},
		"10.2.255.254 is the gateway of pool v4. Ask for an address of pool v4":                                                  {both[:1], []string{"10.2.255.254"}},
		"fd00::1 of the annotation ipam.antrea.io/pod-ips is of another family than the pools v4, more":                          {both, []string{"fd00::1"}},
		"is the second of its family, after 10.2.0.1":                                                                            {both, []string{"10.2.0.1", "10.2.0.2"}},
		"pool v6 has no addresses in VLAN 0":                                                                                     {dual, []string{"10.2.0.1", "fd00::1"}},
	} {
		if got, err := ask("c", c.pools, c.ips...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %s, %v, want %s", c.ips, got, err, want)
		}
	}
	if phases(t, s) != before {
		t.Errorf("the store has %s, before it had %s", phases(t, s), before)
	}
	// A requested address is allocated even while it is cooling.
	release(t, a, "a")
	if got, err := ask("d", both, "10.2.1.4"); got != "10.2.1.4/16" || err != nil {
		t.Errorf("while it cools: %s, %v", got, err)
	}
}

// An address that another host uses is marked as a conflict for all nodes and not allocated.
func TestConflict(t *testing.T) {
	s := directory(t)
	p := makePool(t, "p", "10.2.0.1", "10.2.0.2", 3)
	a := newAllocator(s)
	var asked []string
	stranger := netip.MustParsePrefix("10.2.0.1/16")
	a.Probe = func(_ context.Context, g Address) (api.MAC, bool, error) {
		asked = append(asked, fmt.Sprintf("%s vlan %d of %s", g.Prefix, g.VLAN, g.Pool))
		return api.MAC{2, 0, 0, 0, 0, 1}, g.Prefix == stranger, nil
	}
	if got := allocate(t, a, "a", p); got != "10.2.0.2/16" {
		t.Errorf("given: %s", got)
	}
	release(t, a, "a")
	allocate(t, a, "b", p)
	if got := strings.Join(asked, ", "); strings.Count(got, "10.2.0.1/16 vlan 3 of p") > 1 ||
		!strings.HasSuffix(got, "10.2.0.2/16 vlan 3 of p") {
		t.Errorf("asked: %s", got)
	}
	_, err := a.Allocate(t.Context(), Request{Pools: []pool.Pool{p}, Owner: ownerNamed("c")})
	const want = "pool p is exhausted: 2 of 2 addresses are in use (1 by hosts outside of the cluster)"
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	_, err = a.Allocate(t.Context(), Request{Pools: []pool.Pool{p}, Owner: ownerNamed("c"),
		PodIPs: []netip.Addr{stranger.Addr()}})
	if err == nil || !strings.Contains(err.Error(), "10.2.0.1 of the annotation ipam.antrea.io/pod-ips is used by a host outside of the cluster") ||
		!strings.Contains(err.Error(), "02:00:00:00:00:01") {
		t.Errorf("exactly that one: %v", err)
	}
	stranger = netip.Prefix{}
	if got, err := a.Allocate(t.Context(), Request{Pools: []pool.Pool{p}, Owner: ownerNamed("c"),
		PodIPs: []netip.Addr{netip.MustParseAddr("10.2.0.1")}}); err != nil {
		t.Errorf("when the stranger is gone: %v, %v", got, err)
	}
}

// If the probe fails, no address is allocated.
func TestProbeFails(t *testing.T) {
	s := directory(t)
	a := newAllocator(s)
	broken := errors.New("no wire")
	a.Probe = func(context.Context, Address) (api.MAC, bool, error) { return api.MAC{}, false, broken }
	_, err := a.Allocate(t.Context(), Request{Pools: []pool.Pool{makePool(t, "p", "10.2.0.1", "10.2.0.2", 3)}, Owner: ownerNamed("a")})
	if !errors.Is(err, broken) || phases(t, s) != "" {
		t.Errorf("%v; the store has %q", err, phases(t, s))
	}
}

// The caller's context may expire at any moment: no allocation is left behind.
func TestTimeIsUp(t *testing.T) {
	s := directory(t)
	a := newAllocator(s)
	ctx, cancel := context.WithCancel(t.Context())
	a.Probe = func(ctx context.Context, _ Address) (api.MAC, bool, error) {
		cancel()
		return api.MAC{}, false, ctx.Err()
	}
	_, err := a.Allocate(ctx, Request{Pools: []pool.Pool{makePool(t, "p", "10.2.0.1", "10.2.0.2", 3)}, Owner: ownerNamed("a")})
	if !errors.Is(err, context.Canceled) || phases(t, s) != "" {
		t.Errorf("%v; the store has %q", err, phases(t, s))
	}
}

// Invalid requests are rejected before any request is sent.
func TestNonsense(t *testing.T) {
	a := newAllocator(nil)
	for _, r := range []Request{{Owner: ownerNamed("a")}, {Pools: []pool.Pool{makePool(t, "p", "10.2.0.1", "10.2.0.2", 3)}}} {
		if got, err := a.Allocate(t.Context(), r); err == nil {
			t.Errorf("%+v: %v", r, got)
		}
	}
}

// The free map is a hint; it may be wrong.
func TestHint(t *testing.T) {
	s := directory(t)
	p := makePool(t, "p", "10.2.0.1", "10.2.9.250", 0)
	span, err := pool.ParseSpan("10.2.5.5-10.2.5.6")
	if err != nil {
		t.Fatal(err)
	}
	p.Free = pool.FreeMap{Spans: []pool.Span{span}}
	a := newAllocator(s)
	got := map[string]bool{allocate(t, a, "a", p): true, allocate(t, a, "b", p): true}
	if !got["10.2.5.5/16"] || !got["10.2.5.6/16"] {
		t.Errorf("%v, want the two of the hint", got)
	}
	if c := allocate(t, a, "c", p); got[c] {
		t.Errorf("%s was given twice", c)
	}
}

// Nodes start at different addresses, and a released address is not allocated again at once.
func TestNodesBeginElsewhere(t *testing.T) {
	s := directory(t)
	p := makePool(t, "p", "10.2.0.1", "10.2.9.250", 0)
	seen := map[string]bool{}
	for i := range 20 {
		a := newAllocator(s)
		a.Node, a.Cooling = fmt.Sprint("node", i), 0
		for range 3 {
			seen[allocate(t, a, "a", p)] = true
			release(t, a, "a")
		}
	}
	if len(seen) < 55 {
		t.Errorf("60 Allocates used only %d addresses", len(seen))
	}
}
