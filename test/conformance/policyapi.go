package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/test/kubebin"
)

// policyAPI is the set of the conformance tests of network-policy-api, which are no part of Kubernetes' suite.
const policyAPI = "policyapi"

// policyAPIImage is the image of their pods.
const policyAPIImage = "registry.k8s.io/e2e-test-images/agnhost:2.45"

// needSCTP matches their tests that send SCTP: those with SCTP in their names, and others.
const needSCTP = "SCTP|TierGress|InlineCIDRPeers|EgressNodePeers"

// runPolicyAPI runs them, with all features, and prints their table as run does.
func (r runner) runPolicyAPI(ctx context.Context) (bool, error) {
	tests, crd, err := kubebin.GetPolicyTests(ctx, os.Stderr)
	if err != nil {
		return false, err
	}
	apply := exec.CommandContext(ctx, r.kubectl, "--kubeconfig="+r.cluster.kubeconfig, "apply", "--server-side", "-f", crd)
	apply.Stderr = os.Stderr
	if err := r.cluster.run(apply); err != nil {
		return false, fmt.Errorf("applying the CRD of ClusterNetworkPolicies: %w", err)
	}
	log, err := r.log(policyAPI)
	if err != nil {
		return false, err
	}
	defer log.Close()
	args := []string{"-test.v", "-test.timeout=1h", "-test.run=^TestConformance$"}
	if !hasSCTP() {
		fmt.Fprintf(os.Stderr, "%s: the kernel has no SCTP: tests that send it are left out: %s\n", policyAPI, needSCTP)
		args = append(args, "-test.skip=^TestConformance$/("+needSCTP+")")
	}
	cmd := exec.CommandContext(ctx, tests, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+r.cluster.kubeconfig)
	cmd.Stdout, cmd.Stderr = log, log
	start := time.Now()
	ran := r.cluster.run(cmd)
	text, err := os.ReadFile(log.Name())
	if err != nil {
		return false, err
	}
	passed := printTable(os.Stdout, policyAPI, goResults(string(text)), time.Since(start))
	if passed && ran != nil {
		return false, fmt.Errorf("all tests passed, but the program failed: %w; see %s", ran, log.Name())
	}
	return passed, nil
}

var goResult = regexp.MustCompile(`(?m)^ *--- (PASS|FAIL|SKIP): TestConformance/(\S+) \((\S+)\)$`)

// goResults are the results of the tests without subtests, as "go test -v" prints them.
func goResults(log string) (out []result) {
	all := goResult.FindAllStringSubmatch(log, -1)
	for _, m := range all {
		parts := 0
		for _, other := range all {
			if strings.HasPrefix(other[2], m[2]+"/") {
				parts++
			}
		}
		if parts > 0 {
			continue
		}
		took, _ := time.ParseDuration(m[3]) // as printed by package testing
		out = append(out, result{name: strings.ReplaceAll(m[2], "_", " "), took: took,
			state: map[string]string{"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}[m[1]], why: "see the log"})
	}
	return out
}
