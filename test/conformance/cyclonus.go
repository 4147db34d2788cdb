package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/test/kubebin"
)

// cyclonus is the set of the cases that cyclonus generates, which are no part of Kubernetes' suite.
const cyclonus = "cyclonus"

// cyclonusImage is the image of their pods. Here it also has the worker that cyclonus calls.
const cyclonusImage = "registry.k8s.io/e2e-test-images/agnhost:2.43"

// runCyclonus runs them, and prints their table as run does.
func (r runner) runCyclonus(ctx context.Context) (bool, error) {
	generate, _, err := kubebin.GetCyclonus(ctx, os.Stderr)
	if err != nil {
		return false, err
	}
	log, err := r.log(cyclonus)
	if err != nil {
		return false, err
	}
	defer log.Close()
	report := filepath.Join(filepath.Dir(log.Name()), "report.json")
	args := []string{"-report=" + report, "-cases=" + r.cases}
	if hasSCTP() {
		args = append(args, "-sctp")
	} else {
		fmt.Fprintf(os.Stderr, "%s: the kernel has no SCTP: connections are TCP and UDP\n", cyclonus)
	}
	cmd := exec.CommandContext(ctx, generate, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+r.cluster.kubeconfig)
	cmd.Stdout, cmd.Stderr = log, log
	start := time.Now()
	ran := r.cluster.run(cmd)
	text, err := os.ReadFile(report)
	if err != nil {
		return false, fmt.Errorf("cyclonus left no report (%w): %v; see %s", err, ran, log.Name())
	}
	results, err := cyclonusResults(string(text))
	if err != nil {
		return false, fmt.Errorf("%s: %w", report, err)
	}
	passed := printTable(os.Stdout, cyclonus, results, time.Since(start))
	if ran != nil {
		return false, fmt.Errorf("%s did not run all cases: %w; see %s", cyclonus, ran, log.Name())
	}
	return passed, nil
}

// cyclonusResults reads the report of test/cyclonus/generate.
func cyclonusResults(text string) (out []result, err error) {
	for lines := json.NewDecoder(strings.NewReader(text)); ; {
		var o struct {
			Name   string
			Passed bool
			Took   time.Duration
			Why    string
		}
		err := lines.Decode(&o)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		state := "failed"
		if o.Passed {
			state = "passed"
		}
		out = append(out, result{o.Name, state, o.Took, o.Why})
	}
}
