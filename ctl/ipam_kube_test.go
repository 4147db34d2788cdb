package ctl

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	view "github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/internal/cli"
)

// Each fault of an address, on a real API server, is found with its kind; healthy addresses have no finding.
func TestKubeIPAMCheck(t *testing.T) {
	c := newFixture(t)
	t.Cleanup(c.removeFinalizers)
	c.pool("p")
	c.node("up", corev1.ConditionTrue)
	c.node("down", corev1.ConditionUnknown)
	for i := range 2 { // healthy ones
		p := c.pod([]string{"well", "waits"}[i], "up", [][]string{{"10.2.0.10"}, nil}[i]...)
		c.hold([]string{"10.2.0.10", "10.2.0.11"}[i], p)
	}
	if kinds, code := c.kinds("ipam", "check"); len(kinds) > 0 || code != 0 {
		t.Fatalf("all is well: %v, exit code %d", kinds, code)
	}
	until := api.NewMicroTime(time.Now().Add(time.Hour))
	for _, step := range []struct {
		kind, about string
		code        int
		do          func()
	}{
		{"leak", "10.2.0.12", exitWarning, func() { c.hold("10.2.0.12", c.pod("gone", "up")); c.deletePod("gone") }},
		{"kept-for-node", "10.2.0.13", exitWarning, func() { c.hold("10.2.0.13", c.pod("away", "down")); c.deletePod("away") }},
		{"leak", "10.2.0.14", exitWarning, func() { c.hold("10.2.0.14", c.pod("lost", "no-such-node")); c.deletePod("lost") }},
		{"reservation-leak", "10.2.0.18", exitWarning, func() {
			c.allocation("10.2.0.18", api.IPAllocationSpec{Phase: api.PhaseReserved, Reservation: &api.AllocationReservation{
				Kind: "StatefulSet", Namespace: "default", Name: "db", UID: "of-no-pod"}})
		}},
		{"conflict", "10.2.0.15", exitWarning, func() {
			c.allocation("10.2.0.15", api.IPAllocationSpec{Phase: api.PhaseConflict, MAC: "02:00:00:00:00:07", Until: &until,
				Owner: api.AllocationOwner{Node: "up"}})
		}},
		{"duplicate", "10.99.0.7", exitFailing, func() { c.pod("twin-a", "up", "10.99.0.7"); c.pod("twin-b", "down", "10.99.0.7") }},
		{"not-held", "10.2.0.16", exitFailing, func() { c.pod("stranger", "up", "10.2.0.16") }},
		{"held-by-other", "10.2.0.17", exitFailing, func() { c.hold("10.2.0.17", c.pod("owner", "up")); c.pod("thief", "up", "10.2.0.17") }},
	} {
		step.do()
		kinds, code := c.kinds("ipam", "check")
		out, _ := c.run("ipam", "check")
		if !slices.Contains(kinds, step.kind) || code != step.code || !strings.Contains(out, step.about) {
			t.Errorf("%s of %s: found %v, exit code %d\n%s", step.kind, step.about, kinds, code, out)
		}
	}
	out, _ := c.run("ipam", "check")
	t.Log(out)
	for _, name := range []string{"10.2.0.10 ", "10.2.0.11 ", "default/well"} {
		if strings.Contains(out, name) {
			t.Errorf("%s is healthy, and is reported", name)
		}
	}
	c.letIn("unknown")
	if out, code := c.run("ipam", "check"); code != cli.ExitError || !strings.Contains(out, "still valid?") {
		t.Errorf("not let in: exit code %d\n%s", code, out)
	}
}

// Addresses of living owners are not released, and only addresses that were shown are.
func TestKubeIPAMRelease(t *testing.T) {
	c := newFixture(t)
	t.Cleanup(c.removeFinalizers)
	c.pool("p")
	c.node("up", corev1.ConditionTrue)
	c.node("down", corev1.ConditionUnknown)
	lives := c.pod("lives", "up", "10.2.0.10")
	c.hold("10.2.0.10", lives)
	c.hold("10.2.0.11", c.pod("gone", "up"))
	c.hold("10.2.0.12", c.pod("away", "down"))
	c.deletePod("gone")
	c.deletePod("away")
	until := api.NewMicroTime(time.Now().Add(time.Hour))
	c.allocation("10.2.0.13", api.IPAllocationSpec{Phase: api.PhaseConflict, MAC: "02:00:00:00:00:07", Until: &until})
	c.allocation("10.2.0.14", api.IPAllocationSpec{Phase: api.PhaseReserved, Reservation: &api.AllocationReservation{
		Kind: "StatefulSet", Namespace: "default", Name: "db", UID: "of-no-pod"}})
	phase := func(address string) api.AllocationPhase {
		t.Helper()
		a, err := c.store().Get(t.Context(), address)
		if err != nil {
			return ""
		}
		return a.Spec.Phase
	}
	for _, step := range []struct {
		args  string
		code  int
		says  string
		phase api.AllocationPhase
	}{
		{"10.2.0.10 --yes", cli.ExitError, "its pod is running", api.PhaseAllocated},
		{"10.2.0.10 --yes --force", cli.ExitUsage, "requires --reason", api.PhaseAllocated},
		{"10.2.0.11", cli.ExitUsage, "no terminal to ask for confirmation", api.PhaseAllocated},
		{"10.2.0.11 --yes", 0, "no longer exists", api.PhaseCooling},
		{"10.2.0.12 --yes", cli.ExitError, "its pod may be running", api.PhaseAllocated},
		{"10.2.0.12 --yes --force --reason scrapped", 0, "Node down is not Ready (Unknown)", api.PhaseCooling},
		{"10.2.0.13 --yes", 0, "02:00:00:00:00:07 answers for it", ""},
		{"10.2.0.14 --yes", 0, "reserved for StatefulSet default/db", ""},
		{"10.2.0.15 --yes", cli.ExitError, "10.2.0.15 is not allocated", ""},
		{"10.2.0 --yes", cli.ExitUsage, "not an IP address", ""},
		{"--yes", cli.ExitUsage, "exactly one address is required", ""},
	} {
		out, code := c.run(append([]string{"ipam", "release"}, strings.Fields(step.args)...)...)
		t.Log("\n" + out)
		address, _, _ := strings.Cut(step.args, " ")
		if code != step.code || !strings.Contains(out, step.says) || phase(address) != step.phase {
			t.Errorf("release %s: exit code %d, phase %q, want %d, %q and %q:\n%s", step.args, code, phase(address), step.code, step.phase,
				step.says, out)
		}
	}
	// A pod that gets a shown address meanwhile keeps it.
	c.hold("10.2.0.16", c.pod("late", "up"))
	c.deletePod("late")
	e, err := view.EvidenceOf(t.Context(), c.client, "10.2.0.16")
	c.must(err)
	changed := e.Allocation
	changed.Spec.Owner.PodUID = string(lives.UID)
	_, err = c.store().Update(t.Context(), changed)
	c.must(err)
	err, _ = view.Release(t.Context(), c.client, e, "")
	if err == nil || !strings.Contains(err.Error(), "run the command again") || phase("10.2.0.16") != api.PhaseAllocated {
		t.Errorf("freed what was changed meanwhile: %v, %s", err, phase("10.2.0.16"))
	}
	events, err := c.client.Kubernetes.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{
		FieldSelector: "reason=AddressReleased,involvedObject.name=p"})
	if err != nil || len(events.Items) != 4 || !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
		return strings.Contains(e.Message, "10.2.0.12 was released manually") && strings.Contains(e.Message, "Reason: scrapped")
	}) {
		t.Errorf("%v, Events %+v", err, events.Items)
	}
}

func TestKubeIPAMShow(t *testing.T) {
	c := newFixture(t)
	t.Cleanup(c.removeFinalizers)
	c.pool("p")
	c.node("up", corev1.ConditionTrue)
	c.hold("10.2.0.10", c.pod("a", "up", "10.2.0.10"))
	c.hold("10.2.0.11", c.pod("b", "up", "10.2.0.11"))
	for args, want := range map[string]int{"": 0, "--all": 2, "--pool p": 2, "--node up": 2, "--node other": 0, "--pod a": 1,
		"--pod default/b": 1, "--namespace default": 2, "--address 10.2.0.11": 1} {
		out, code := c.run(append([]string{"ipam", "show", "-o", "json"}, strings.Fields(args)...)...)
		var s struct {
			Pools       []struct{ Phases map[string]int }
			Allocations []api.IPAllocation
		}
		err := json.Unmarshal([]byte(out), &s)
		if err != nil || code != 0 || len(s.Allocations) != want || len(s.Pools) != 1 ||
			s.Pools[0].Phases["Allocated"] != 2 {
			t.Errorf("show %s: %v, exit code %d, want %d allocations\n%s", args, err, code, want, out)
		}
	}
	out, _ := c.run("ipam", "show", "--all")
	t.Log("\n" + out)
	if yaml, code := c.run("ipam", "show", "-o", "yaml"); code != 0 || !strings.Contains(yaml, "\n- name: p\n") {
		t.Errorf("-o yaml: exit code %d\n%s", code, yaml)
	}
	for args, code := range map[string]int{"--pool none": cli.ExitError, "--address x": cli.ExitUsage, "-o xml": cli.ExitUsage, "more": cli.ExitUsage} {
		if out, got := c.run(append([]string{"ipam", "show"}, strings.Fields(args)...)...); got != code {
			t.Errorf("show %s: exit code %d, want %d\n%s", args, got, code, out)
		}
	}
}
