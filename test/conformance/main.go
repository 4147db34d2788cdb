// Command conformance runs Kubernetes' own network tests (k8s.io/kubernetes/test/e2e) with Fairlead: the [sig-network]
// ones of [Conformance], and those of IPv6DualStack; with -sets those of Services and of NetworkPolicy, and the policy
// tests of other projects: those of network-policy-api, and the cases of cyclonus. They run in a bed of real nodes that
// it creates and removes, or in the cluster of -kubeconfig. It prints a table of tests and the messages of those that
// failed; reports (JUnit, Ginkgo's JSON, the tests' output) are below -out.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/kubebin"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// flags are the command line's.
type flags struct {
	sets, focus, cases, kubeconfig, images, out string
	procs                                       int
	bed                                         bedOptions
}

func parse() (flags, error) {
	var f flags
	flag.StringVar(&f.sets, "sets", "conformance,dualstack", "which tests, comma-separated: "+names())
	flag.StringVar(&f.focus, "focus", "", "instead of -sets: run the tests whose name matches this regular expression")
	flag.StringVar(&f.cases, "cases", "", "of the set cyclonus: run the cases whose name matches this regular expression")
	flag.IntVar(&f.procs, "procs", 8, "tests at a time")
	flag.StringVar(&f.out, "out", "out/conformance", "directory of reports")
	flag.StringVar(&f.images, "images", "", "only write the images of the tests' pods to this file")
	flag.StringVar(&f.kubeconfig, "kubeconfig", "", "run in the cluster of this administrator kubeconfig instead of creating one")
	flag.IntVar(&f.bed.nodes, "nodes", 2, "number of nodes to create, or with -kubeconfig: number of nodes in the cluster")
	flag.StringVar(&f.bed.network, "network", steer, "the nodes' network: Fairlead in mode steer, or with a tunnel, or the reference plugin")
	flag.StringVar(&f.bed.proxy, "proxy", bed.Nftables, "kube-proxy's mode: nftables or iptables, or none: no kube-proxy (for -sets podservices)")
	flag.StringVar(&f.bed.family, "family", string(underlay.Dual), "of nodes and pods: ipv4, ipv6 or dual")
	flag.BoolVar(&f.bed.bridged, "bridged", false, "the tests' pods are bridged, in a VLAN, instead of routed")
	flag.Func("set", "a value of the chart, KEY=VALUE, such as agent.config.services=ovs; may be repeated",
		func(value string) error { f.bed.values = append(f.bed.values, value); return nil })
	flag.BoolVar(&f.bed.keep, "keep", false, "keep the nodes at the end (bin/e2e --name conformance down)")
	flag.Parse()
	if flag.NArg() > 0 {
		return f, fmt.Errorf("%q: only flags are accepted", flag.Arg(0))
	}
	if !slices.Contains([]string{steer, tunnel, reference}, f.bed.network) {
		return f, fmt.Errorf("-network %s: want steer, tunnel or reference", f.bed.network)
	}
	if f.bed.bridged && (f.bed.network == reference || f.bed.family != string(underlay.Dual)) {
		return f, errors.New("-bridged wants Fairlead's network, and both address families")
	}
	return f, nil
}

func run(ctx context.Context) error {
	f, err := parse()
	if err != nil {
		return err
	}
	chosen, err := choose(f)
	if err != nil {
		return err
	}
	suite, err := kubebin.GetSuite(ctx, os.Stderr)
	if err != nil {
		return err
	}
	coredns, err := kubebin.GetCoreDNS(ctx, os.Stderr)
	if err != nil {
		return err
	}
	if f.images != "" {
		return writeImages(ctx, suite, coredns, f.images)
	}
	tmp, err := os.MkdirTemp("", "fairlead-conformance-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	r := runner{suite: suite, procs: f.procs, cases: f.cases, nodes: f.bed.nodes,
		cluster: cluster{f.kubeconfig, (*exec.Cmd).Start}}
	if r.kubectl, err = linkKubectl(ctx, tmp); err != nil {
		return err
	}
	if r.out, err = filepath.Abs(f.out); err != nil {
		return err
	}
	if f.kubeconfig != "" {
		return r.runAll(ctx, chosen)
	}
	b, err := f.bed.makeBed(ctx, suite, coredns, tmp)
	if err != nil {
		return err
	}
	r.cluster = clusterOf(b)
	err = r.runAll(ctx, chosen)
	if !f.bed.keep {
		err = errors.Join(err, b.Down(context.WithoutCancel(ctx)))
	}
	return err
}

// choose returns the requested sets.
func choose(f flags) ([]set, error) {
	if f.focus != "" {
		return []set{{"focus", f.focus, "^$"}}, nil
	}
	var chosen []set
	for name := range strings.SplitSeq(f.sets, ",") {
		i := slices.IndexFunc(sets(), func(s set) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no set %q: the sets are %s", name, names())
		}
		chosen = append(chosen, sets()[i])
	}
	return chosen, nil
}

func (r runner) runAll(ctx context.Context, sets []set) error {
	var failed []string
	for _, s := range sets {
		passed, err := r.run(ctx, s)
		if err != nil {
			return err
		}
		if !passed {
			failed = append(failed, s.name)
		}
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
	}
	if failed != nil {
		return fmt.Errorf("failed: %s. The tests' output: %s/*/log.txt", strings.Join(failed, ", "), r.out)
	}
	return nil
}

// linkKubectl creates the link kubectl in dir, by whose name kubeparts runs as kubectl: the tests run it.
func linkKubectl(ctx context.Context, dir string) (string, error) {
	program, err := kubebin.Get(ctx, os.Stderr)
	if err != nil {
		return "", err
	}
	kubectl := filepath.Join(dir, "kubectl")
	return kubectl, os.Symlink(program, kubectl)
}
