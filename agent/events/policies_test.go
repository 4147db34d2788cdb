package events

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// toldPolicies are the Events that a Policies has written.
type toldPolicies struct {
	warnings []kube.Warning
	err      error
}

func (w *toldPolicies) warn(_ context.Context, _ string, k kube.Warning) error {
	w.warnings = append(w.warnings, k)
	return w.err
}

func tellerOf(t *testing.T, node string, source inputs.Source) (*Policies, *toldPolicies) {
	t.Helper()
	w := &toldPolicies{}
	p := NewPolicies(source, nil, node, false, api.DefaultIntervals().Agent,
		status.NewMetrics("test"), logr.Discard())
	p.warn = w.warn
	return p, w
}

// Of all agents, one reports immediately and keeps doing so, and two join later.
func TestPolicyEvents(t *testing.T) {
	dir := t.TempDir()
	const policy = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p%d, namespace: shop}}"
	for i := range 20 {
		node := fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: node-%d}}\n---\n%s", i, fmt.Sprintf(policy, i))
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), []byte(node), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	source, err := inputs.NewDirectory(dir, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	atOnce, later, renewed := map[string]int{}, map[string]int{}, map[string]int{}
	busiest := 0
	for i := range 20 {
		p, w := tellerOf(t, fmt.Sprintf("node-%d", i), source)
		count := func(into map[string]int, at time.Duration, once bool) {
			w.warnings = nil
			p.check(t.Context(), start.Add(at))
			for _, k := range w.warnings {
				into[k.About.Name]++
				if k.Once != once {
					t.Errorf("node-%d reports %s with once=%v, want %v", i, k.About.Name, k.Once, once)
				}
			}
			busiest = max(busiest, len(w.warnings))
		}
		count(atOnce, 0, false)
		count(map[string]int{}, time.Second, false) // nothing new
		count(later, 2*api.DefaultIntervals().Agent.PolicyStep, true)
		w.warnings = nil
		p.check(t.Context(), start.Add(renewEvents))
		for _, k := range w.warnings {
			renewed[k.About.Name]++
		}
	}
	for i := range 20 {
		name := fmt.Sprintf("p%d", i)
		if atOnce[name] != 1 || later[name] != reporters-1 || renewed[name] != 1 {
			t.Errorf("%s was reported by %d agents at once, by %d later, by %d half an hour later; want 1, %d and 1",
				name, atOnce[name], later[name], renewed[name], reporters-1)
		}
	}
	if busiest > 10 {
		t.Errorf("one agent reports %d policies of 20: the work is not spread", busiest)
	}
}

// Writing an Event is retried after a failure.
func TestPolicyEventAgainAfterAnError(t *testing.T) {
	dir := t.TempDir()
	const manifest = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p}}`
	if err := os.WriteFile(filepath.Join(dir, "p.yaml"), []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	source, err := inputs.NewDirectory(dir, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	p, w := tellerOf(t, "me", source)
	w.err = errors.New("the API server is away")
	now := time.Now()
	p.check(t.Context(), now)
	w.err = nil
	p.check(t.Context(), now.Add(p.every.Policies))
	p.check(t.Context(), now.Add(2*p.every.Policies))
	if len(w.warnings) != 2 {
		t.Errorf("reported %d times, want 2: the first failed", len(w.warnings))
	}
}

// One Event that the API server rejects does not delay others.
func TestPolicyThatIsRefused(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		manifest := fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s}}`, name)
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(manifest), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	source, err := inputs.NewDirectory(dir, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	p, w := tellerOf(t, "me", source)
	w.err = fmt.Errorf("writing: %w", apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "a",
		errors.New("its namespace is being terminated")))
	now := time.Now()
	p.check(t.Context(), now)
	p.check(t.Context(), now.Add(p.every.Policies))
	var about []string
	for _, k := range w.warnings {
		about = append(about, k.About.Name)
	}
	if !slices.Equal(about, []string{"a", "b"}) {
		t.Errorf("reported %v, want each of the two once", about)
	}
}

// Policies without effect get one Event each, from the first of the agents, after some time.
func TestPolicyWithoutEffectIsReported(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		manifest := fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s, namespace: shop}}`, name)
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(manifest), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	source, err := inputs.NewDirectory(dir, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	p, w := tellerOf(t, "me", source)
	p.enforced = true
	idle := map[string]*compile.Idle{"a": {}, "b": {Ports: []policy.NamedPort{{Protocol: policy.TCP, Name: "http"}}}}
	asked := 0
	p.idle.query = func(_ context.Context, ref policy.Ref) (*compile.Idle, error) {
		asked++
		return idle[ref.Name], nil
	}
	now := time.Now()
	look := func(at time.Duration) { p.check(t.Context(), now.Add(at)) }
	look(0)
	if look(idleFor / 2); asked != 0 {
		t.Errorf("asked at once, before pods can have come")
	}
	look(idleFor)
	if look(idleFor * 3 / 2); asked != 3 || len(w.warnings) != 0 {
		t.Errorf("asked %d times, and reported: %+v", asked, w.warnings)
	}
	delete(idle, "a") // selects a pod at this moment
	look(2 * idleFor)
	if len(w.warnings) != 1 || w.warnings[0].About.Name != "b" || w.warnings[0].Reason != ReasonUnknownPort ||
		!strings.Contains(w.warnings[0].Message, "http/TCP") {
		t.Errorf("reported: %+v, want b once", w.warnings)
	}
	idle["a"] = &compile.Idle{}
	for at := 3 * idleFor; at <= 2*idleFor+idleAgain; at += idleFor {
		look(at)
	}
	if look(2*idleFor + idleAgain + idleFor/2); len(w.warnings) > 2 {
		t.Errorf("reported: %+v, before a has done nothing for a while", w.warnings)
	}
	look(3*idleFor + idleAgain)
	if last := w.warnings[len(w.warnings)-1]; last.About.Name != "a" || last.Reason != ReasonSelectsNothing {
		t.Errorf("reported: %+v, want a as well", w.warnings)
	}
}

// After one query that the API server does not answer, the others wait. The set of policies that an agent reports is
// rarely recomputed.
func TestIdlenessThatIsNotKnown(t *testing.T) {
	asked := 0
	i := idleness{known: map[string]idle{}, query: func(context.Context, policy.Ref) (*compile.Idle, error) {
		asked++
		return nil, errors.New("away")
	}}
	all := map[string]inputs.NetworkPolicy{"a": {Name: "a"}, "b": {Name: "b"}}
	now := time.Now()
	ours, ranked := true, 0
	look := func(at time.Duration) map[string]finding {
		return i.findings(t.Context(), all, func(inputs.NetworkPolicy) bool { ranked++; return ours }, now.Add(at))
	}
	look(0)
	if found := look(idleFor); asked != 1 || len(found) != 0 {
		t.Errorf("asked %d times, found %v", asked, found)
	}
	ours, ranked, asked = false, 0, 0 // nearer Nodes have been added
	for at := 2 * idleFor; at < 2*idleFor+rankAgain; at += 10 * time.Second {
		look(at)
	}
	if asked != 0 || ranked != len(all) {
		t.Errorf("asked %d times about other agents' policies, and ranked %d times in ten minutes, want once each", asked, ranked)
	}
}
