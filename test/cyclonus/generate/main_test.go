package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/mattfenwick/cyclonus/pkg/kube"
	corev1 "k8s.io/api/core/v1"
)

// outcomes runs the cases of those names where all connections succeed (connected 1) or none (0).
func outcomes(t *testing.T, names string, connected float64) (all []outcome) {
	t.Helper()
	var report bytes.Buffer
	b := bed{cluster: kube.NewMockKubernetes(connected),
		protocols: []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}}
	if err := b.run(regexp.MustCompile(names), json.NewEncoder(&report)); err != nil {
		t.Fatal(err)
	}
	for lines := json.NewDecoder(&report); ; {
		var o outcome
		if err := lines.Decode(&o); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
}

// The report has every connection that is wrongly open or closed, and a pod must reach itself.
func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		connected  float64
		has, hasNo string
	}{
		{1, "step 1: y/b to x/a TCP/80: allowed, want blocked", "x/a to x/a"},
		{1, "step 1: y/b to x/a UDP/81: allowed, want blocked", "want allowed"},
		{0, "step 1: x/a to x/a TCP/81: blocked, want allowed", "want blocked"},
		{0, "step 1: x/b to y/a TCP/81: blocked, want allowed", "x/b to x/a"},
	} {
		all := outcomes(t, "^pod-ip .*ingress: deny all$", c.connected)
		if len(all) != 1 || all[0].Passed || !strings.Contains(all[0].Why, c.has) || strings.Contains(all[0].Why, c.hasNo) {
			t.Errorf("%+v, want one case that has %q and no %q", all, c.has, c.hasNo)
		}
	}
}

// Each case exists once by pods' addresses and once by Services, and has a unique name.
func TestCasesAreDistinct(t *testing.T) {
	pods, err := bed{cluster: kube.NewMockKubernetes(1), protocols: []corev1.Protocol{corev1.ProtocolTCP}}.pods()
	if err != nil {
		t.Fatal(err)
	}
	byMode, names := map[string]int{}, map[string]bool{}
	for _, c := range cases(pods) {
		mode, _, _ := strings.Cut(c.name, " ")
		byMode[mode]++
		names[c.name] = true
	}
	if byMode["pod-ip"] != 112 || byMode["service-ip"]+byMode["service-name"] != 112 || byMode["service-name"] != 3 {
		t.Errorf("cases: %v, want 112 by address of pods, and as many by Services, three of them by name", byMode)
	}
	if len(names) != 224 {
		t.Errorf("%d names of cases, want 224", len(names))
	}
}
