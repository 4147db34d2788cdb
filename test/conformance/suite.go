package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/kubebin"
)

// set is a part of Kubernetes' tests.
type set struct {
	name        string
	focus, skip string // regular expressions over the names of tests
}

// sets are the parts that Fairlead must pass. Tests of SCTP are left out where the kernel does not support it.
func sets() []set {
	skip := "^$"
	if !hasSCTP() {
		skip = `\[Feature:SCTPConnectivity\]`
	}
	return []set{
		{"conformance", `\[sig-network\].*\[Conformance\]`, skip},
		{"dualstack", `\[Feature:IPv6DualStack\]`, skip},
		{"services", `Networking Granular Checks: Services`, skip},
		{"allservices", `\[sig-network\].*(Services|Traffic Distribution|EndpointSlice|Conntrack|HostPort|source pod IP)`,
			skip + "|" + kubeProxyOnly},
		{"podservices", podServices, skip},
		{"netpol", `\[Feature:NetworkPolicy\]|Netpol API`, skip},
		{name: policyAPI},
		{name: cyclonus},
	}
}

func hasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

// kubeProxyOnly are tests that are about kube-proxy itself, or need what no bed of real nodes on one machine has: a
// cloud's load balancer, or SSH to the nodes.
const kubeProxyOnly = `KubeProxy|kube-proxy|\[Feature:LoadBalancer\]|LoadBalancers|\[Disruptive\]|SSH|\[Feature:GCEAlpha`

// podServices are tests of Services that only pods call, by ClusterIP: they pass without kube-proxy, too.
const podServices = `\[sig-network\] Services should (serve a basic endpoint from pods|serve multiport endpoints from pods|` +
	`serve endpoints on same port|preserve source pod IP|have session affinity (timeout )?work for service with type clusterIP|` +
	`be able to switch session affinity for service with type clusterIP|allow pods to hairpin|be rejected when no endpoints|` +
	`be rejected for evicted pods|create endpoints for unready pods)|` +
	`\[sig-network\] DNS should provide DNS for (the cluster +\[Conf|services|pods)`

// names are those of the sets.
func names() string {
	var all []string
	for _, s := range sets() {
		all = append(all, s.name)
	}
	return strings.Join(all, ", ")
}

// cluster is where tests run.
type cluster struct {
	kubeconfig string                // of an administrator
	start      func(*exec.Cmd) error // starts a program where it can reach the API server
}

// run runs a program there until it exits.
func (c cluster) run(cmd *exec.Cmd) error {
	if err := c.start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// runner runs sets of the suite.
type runner struct {
	suite   kubebin.Suite
	kubectl string
	out     string // directory of reports
	procs   int    // tests at a time
	cases   string // of cyclonus: a regular expression over names
	nodes   int    // of the cluster: some tests need two
	cluster cluster
}

// run runs one set and prints its table on stdout. The output of the tests is written to a file. It reports whether all
// passed.
func (r runner) run(ctx context.Context, s set) (bool, error) {
	switch s.name {
	case policyAPI:
		return r.runPolicyAPI(ctx)
	case cyclonus:
		return r.runCyclonus(ctx)
	}
	log, err := r.log(s.name)
	if err != nil {
		return false, err
	}
	defer log.Close()
	dir := filepath.Dir(log.Name())
	cmd := exec.CommandContext(ctx, r.suite.Ginkgo, "--procs="+strconv.Itoa(r.procs), "--focus="+s.focus,
		"--skip="+s.skip, "--no-color", "--silence-skips", "--timeout=1h", "--output-dir="+dir, "--json-report=report.json", "--junit-report=junit.xml",
		r.suite.Tests, "--", "--kubeconfig="+r.cluster.kubeconfig, "--kubectl-path="+r.kubectl, "--provider=skeleton",
		"--disable-log-dump=true", "--num-nodes="+strconv.Itoa(r.nodes), "--node-os-distro=debian")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // Ginkgo then cleans up and reports
	cmd.WaitDelay = 2 * time.Minute
	start := time.Now()
	ran := r.cluster.run(cmd)
	results, err := readReport(filepath.Join(dir, "report.json"))
	if err != nil {
		return false, fmt.Errorf("the tests left no report (%w): %v; see %s", err, ran, log.Name())
	}
	passed := printTable(os.Stdout, s.name, results, time.Since(start))
	if passed && ran != nil {
		return false, fmt.Errorf("all tests passed, but Ginkgo failed: %w; see %s", ran, log.Name())
	}
	return passed, nil
}

// log creates the file for the output of a set's tests, in a new directory for their reports.
func (r runner) log(set string) (*os.File, error) {
	dir := filepath.Join(r.out, set)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "log.txt")
	fmt.Fprintf(os.Stderr, "%s: what the tests print is in %s\n", set, file)
	return os.Create(file)
}
