// Command generate runs cyclonus' generated NetworkPolicy cases in the cluster of the environment's kubeconfig: it
// tries each connection between nine pods and compares the result with the verdict of cyclonus' matcher. It is
// "cyclonus generate" with three differences. A pod tries its connections all at once, with the program worker in its
// image: one by one they would be 324 calls of kubectl exec in each step. Each step is tried only once. And a pod must
// always reach itself, which cyclonus can only ignore.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mattfenwick/cyclonus/pkg/connectivity"
	"github.com/mattfenwick/cyclonus/pkg/connectivity/probe"
	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/kube"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run() error {
	report := flag.String("report", "", "write the results to this file, a line of JSON for each case")
	cases := flag.String("cases", "", "only cases whose name matches this regular expression")
	sctp := flag.Bool("sctp", false, "serve SCTP as well")
	wait := flag.Int("wait", 1, "seconds between a change of policies or labels and connections")
	flag.Parse()
	only, err := regexp.Compile(*cases)
	if err != nil {
		return err
	}
	out, err := os.Create(*report)
	if err != nil {
		return err
	}
	defer out.Close()
	cluster, err := connect()
	if err != nil {
		return err
	}
	protocols := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}
	if *sctp {
		protocols = append(protocols, corev1.ProtocolSCTP)
	}
	return bed{cluster: cluster, protocols: protocols, wait: *wait, batch: true}.run(only, json.NewEncoder(out))
}

// connect is kube.NewKubernetesForContext, without client-side rate limiting, which takes most of a case's time there.
func connect() (kube.IKubernetes, error) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	set, err := kubernetes.NewForConfig(config)
	return &kube.Kubernetes{ClientSet: set, RestConfig: config}, err
}

// bed is where cases run.
type bed struct {
	cluster   kube.IKubernetes
	protocols []corev1.Protocol // that pods serve
	wait      int               // seconds
	batch     bool              // pods have a worker
}

// run runs the cases whose names match.
func (b bed) run(only *regexp.Regexp, report *json.Encoder) (err error) {
	for _, n := range namespaces() {
		if _, err := b.cluster.GetNamespace(n); err == nil {
			return fmt.Errorf("namespace %s exists already: the cases create x, y and z", n)
		}
		defer func() { err = errors.Join(err, b.cluster.DeleteNamespace(n)) }()
	}
	pods, err := b.pods()
	if err != nil {
		return err
	}
	interpreter := connectivity.NewInterpreter(b.cluster, pods, &connectivity.InterpreterConfig{BatchJobs: b.batch,
		ResetClusterBeforeTestCase: true, VerifyClusterStateBeforeTestCase: true, PerturbationWaitSeconds: b.wait,
		JobTimeoutSeconds: 1})
	log := connectivity.Printer{IgnoreLoopback: true}
	for _, c := range cases(pods) {
		if !only.MatchString(c.name) {
			continue
		}
		fmt.Println("case", c.name)
		start := time.Now()
		result := interpreter.ExecuteTestCase(c.TestCase)
		o := judge(result)
		o.Name, o.Took = c.name, time.Since(start)
		if err := report.Encode(o); err != nil {
			return err
		}
		log.PrintTestCaseResult(result)
		if !o.Passed {
			fmt.Println("FAILED:", c.name, o.Why)
		}
	}
	return nil
}

// namespaces are those that cyclonus' cases name.
func namespaces() []string { return []string{"x", "y", "z"} }

// pods creates the pods that cyclonus' cases name.
func (b bed) pods() (*probe.Resources, error) {
	return probe.NewDefaultResources(b.cluster, namespaces(), []string{"a", "b", "c"}, []int{80, 81}, b.protocols, nil,
		120, false, "registry.k8s.io")
}

// namedCase is one of cyclonus' cases, whose descriptions are not unique.
type namedCase struct {
	name string
	*generator.TestCase
}

// cases are those that cyclonus runs by default, by pods' addresses and by those of Services.
func cases(pods *probe.Resources) (all []namedCase) {
	last := pods.Pods[len(pods.Pods)-1] // z/c, whose address is in the cases' IPBlocks
	for _, mode := range []generator.ProbeMode{generator.ProbeModePodIP, generator.ProbeModeServiceIP} {
		made := generator.NewTestCaseGenerator(true, last.IP, pods.NamespacesSlice(), nil, excluded()).GenerateTestCases()
		for i, c := range made {
			to := mode
			if mode == generator.ProbeModeServiceIP && changesPods(c) {
				to = generator.ProbeModeServiceName
			}
			for _, step := range c.Steps {
				shared := *step.Probe
				step.Probe, shared.Mode = &shared, to
			}
			all = append(all, namedCase{fmt.Sprintf("%s #%d %s", to, i+1, c.Description), c})
		}
	}
	return all
}

// excluded are the tags of what cyclonus leaves out by default.
func excluded() []string {
	return []string{generator.TagMultiPeer, generator.TagUpstreamE2E, generator.TagExample, generator.TagEndPort,
		generator.TagNamespacesByDefaultLabel}
}

// changesPods reports whether a case creates pods or changes their labels: after that cyclonus does not know the
// addresses of their Services, and connects to an empty address, which is the pod itself.
func changesPods(c *generator.TestCase) bool {
	return slices.ContainsFunc(c.Steps, func(s *generator.TestStep) bool {
		return slices.ContainsFunc(s.Actions, func(a *generator.Action) bool {
			return a.CreatePod != nil || a.SetPodLabels != nil
		})
	})
}

// outcome is a line of the report.
type outcome struct {
	Name   string
	Passed bool
	Took   time.Duration
	Why    string // each connection that is not as expected
}

func judge(r *connectivity.Result) outcome {
	if r.Err != nil {
		return outcome{Why: r.Err.Error()}
	}
	var wrong []string
	for i, step := range r.Steps {
		for _, w := range differences(step) {
			wrong = append(wrong, fmt.Sprintf("step %d: %s", i+1, w))
		}
	}
	return outcome{Passed: wrong == nil, Why: strings.Join(wrong, "\n")}
}

// differences are the connections that are not as they should be.
func differences(step *connectivity.StepResult) (wrong []string) {
	got, want := step.LastKubeProbe(), step.SimulatedProbe
	for _, key := range got.Wrapped.Keys() {
		for port, result := range got.Get(key.From, key.To).JobResults {
			expected := want.Get(key.From, key.To).JobResults[port].Combined
			if key.From == key.To && expected == probe.ConnectivityBlocked {
				expected = probe.ConnectivityAllowed // "A Pod cannot block access to itself"
			}
			if result.Combined != expected {
				wrong = append(wrong, fmt.Sprintf("%s to %s %s: %s, want %s", key.From, key.To, port, result.Combined, expected))
			}
		}
	}
	slices.Sort(wrong)
	return wrong
}
