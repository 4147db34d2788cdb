// Package agents queries the agents of other nodes by running fairleadctl in their Pods as "kubectl exec" does, with
// the rights of the user. Agents answer on their own node only, and serve no port to others.
package agents

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/kube"
)

// container is the agent's container in its Pod.
const container = "fairlead-agent"

// atOnce is how many nodes are queried at once.
const atOnce = 64

// reserve is the part of the limit that the agent may not use: its answer has to come back.
const reserve = 5 * time.Second

// Answer is what a node's agent reports about the paths between its pods and those of other nodes. It is the output of
// "fairleadctl reach --node-local".
type Answer struct {
	Node string `json:"node,omitempty"`
	// Error is why the agent does not answer on its own node.
	Error string `json:"error,omitempty"`
	// Reach is nil where it does not probe.
	Reach *api.AgentReach `json:"reach,omitempty"`
	// Refused is why it does not probe the node in question.
	Refused string `json:"refused,omitempty"`
	// NotQueried is why it was not queried.
	NotQueried string `json:"-"`
}

// Failure is why the question has no answer; nil if it has one.
func (a Answer) Failure() error {
	if why := cmp.Or(a.Error, a.Refused); why != "" {
		return errors.New(why)
	}
	return nil
}

// Side is the answer as one end of a pair of nodes, or of all pairs if peer is empty.
func (a Answer) Side(peer string) reach.Side {
	s := reach.Side{Node: a.Node, NotQueried: cmp.Or(a.NotQueried, a.Error), Down: a.NotQueried == "" && a.Error != ""}
	switch {
	case s.NotQueried != "":
	case a.Reach == nil:
		s.Idle = reach.IdleByConfig
	case a.Reach.Problem != "":
		s.Idle = a.Reach.Problem
	default:
		for _, p := range a.Reach.Paths {
			if p.Node == peer || peer == "" {
				s.Paths = append(s.Paths, p)
			}
		}
		if len(s.Paths) == 0 {
			s.Idle = a.Refused
		}
		if peer == "" && len(a.Reach.Paths) == 0 && a.Reach.Asked > 0 {
			s.NotQueried = "its agent is of an earlier version, which reports less"
		}
	}
	return s
}

// Querier queries agents.
type Querier struct {
	Client *kube.Client
	// Node is the config of the agent on this node; nil: this is no node, or its agent may not be queried.
	Node *api.AgentConfig
}

// query gets the answers of the agents of nodes, each about its peer, or about all nodes where that is empty: the agent
// of the own node directly, as root, the others by a command in their Pods. Each has limit. The answers are in the
// order of nodes.
func (k Querier) query(ctx context.Context, limit time.Duration, nodes []string, peer func(node string) string) (
	[]Answer, error) {
	own, known := k.own(ctx), map[string]Answer{}
	var running sync.WaitGroup
	if slices.Contains(nodes, own) {
		running.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			known[own] = Here(ctx, *k.Node, peer(own))
		})
	}
	others := slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == own })
	answers, err := inPods(ctx, k.Client, limit, others, peer)
	running.Wait()
	if err != nil {
		return nil, cluster.Explain("the Pods of agents", err)
	}
	out := make([]Answer, 0, len(nodes))
	for _, n := range nodes {
		if n == own {
			out = append(out, known[own])
			continue
		}
		out, answers = append(out, answers[0]), answers[1:]
	}
	return out, nil
}

// own is the node on which this runs, as its agent reports; empty: it may not be queried, or does not answer.
func (k Querier) own(ctx context.Context) string {
	if k.Node == nil {
		return ""
	}
	s, err := nodestate.Agent(ctx, *k.Node)
	if err != nil {
		return ""
	}
	return s.Node
}

// inPods queries the agents of nodes by commands in their Pods, otherwise as query.
func inPods(ctx context.Context, client *kube.Client, limit time.Duration, nodes []string,
	peer func(node string) string) ([]Answer, error) {
	results, err := InPods(ctx, client, limit, nodes, Command{"reach --node-local", func(node string, left time.Duration) []string {
		args := []string{"-o", "json", "--timeout", max(left-reserve, time.Second).String()}
		if p := peer(node); p != "" {
			args = append(args, p)
		}
		return args
	}})
	var out []Answer
	for _, s := range results {
		out = append(out, s.answer())
	}
	return out, err
}

// answer is the output of "fairleadctl reach --node-local".
func (s CommandResult) answer() Answer {
	if s.Down {
		return Answer{Node: s.Node, Error: s.Why}
	}
	a := Answer{}
	if json.Unmarshal(s.Output, &a) == nil && (a.Reach != nil || a.Error != "" || s.OK) {
		a.Node = s.Node
		return a
	}
	return Answer{Node: s.Node, NotQueried: s.Why}
}

// Command is a command of fairleadctl that runs in agents' Pods.
type Command struct {
	// Name is the command with the arguments that a user on the node would give as well.
	Name string
	// More are further arguments; left is how long the command may take on this node.
	More func(node string, left time.Duration) []string
}

// CommandResult is the outcome of a command in the Pod of a node's agent.
type CommandResult struct {
	Node string
	// Output is what it has printed to stdout, OK whether it has ended without an error.
	Output []byte
	OK     bool
	// Why says, if Output is no answer, why not, and what to do. Down: because the agent's container does not run.
	Why  string
	Down bool
}

// InPods runs a command in the Pods of the nodes' agents, each for at most limit. The result is in the order of nodes.
// An error means that the Pods could not be listed.
func InPods(ctx context.Context, client *kube.Client, limit time.Duration, nodes []string,
	c Command) ([]CommandResult, error) {
	list, err := client.Kubernetes.CoreV1().Pods(metav1.NamespaceSystem).List(ctx,
		metav1.ListOptions{LabelSelector: api.AgentPodSelector})
	if err != nil {
		return nil, err
	}
	out := make([]CommandResult, len(nodes))
	var running sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for i, node := range nodes {
		running.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			out[i] = c.inPod(ctx, client, list.Items, node, limit)
		})
	}
	running.Wait()
	return out, nil
}

// inPod runs it on one node.
func (c Command) inPod(ctx context.Context, client *kube.Client, pods []corev1.Pod, node string,
	left time.Duration) CommandResult {
	here := slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return p.Spec.NodeName != node })
	if len(here) == 0 {
		return CommandResult{Node: node, Why: "it has no Pod of fairlead-agent. If the agent runs there without a Pod: sudo fairleadctl " +
			c.Name + ", on that node"}
	}
	// A Pod that is being replaced may exist beside the new one.
	slices.SortFunc(here, func(a, b corev1.Pod) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	pod := here[0]
	if why := notRunning(pod); why != "" {
		return CommandResult{Node: node, Down: true, Why: "its Pod does not run: " + why}
	}
	if end, bounded := ctx.Deadline(); bounded {
		left = min(left, time.Until(end).Round(time.Second))
	}
	command := append([]string{"fairleadctl"}, strings.Fields(c.Name)...)
	stdout, stderr, err := run(ctx, client, pod.Name, append(command, c.More(node, left)...))
	return CommandResult{Node: node, Output: stdout, OK: err == nil, Why: c.explain(ctx, stderr, err)}
}

// notRunning is why the agent's container does not run, according to kubelet's last status.
func notRunning(p corev1.Pod) string {
	for _, c := range p.Status.ContainerStatuses {
		switch {
		case c.Name != container || c.State.Running != nil:
		case c.State.Waiting != nil:
			return c.State.Waiting.Reason
		case c.State.Terminated != nil:
			return fmt.Sprintf("ended with exit code %d", c.State.Terminated.ExitCode)
		}
	}
	if p.Status.Phase != corev1.PodRunning {
		return string(p.Status.Phase)
	}
	return ""
}

// explain says why no answer came, and what to do, in the same words for all nodes that have the same reason.
func (c Command) explain(ctx context.Context, stderr []byte, err error) string {
	message := strings.TrimSpace(string(stderr))
	switch {
	case err != nil && strings.Contains(err.Error(), "is forbidden"): // an untyped error: it comes from an HTTP upgrade
		return "agents are queried by commands in their Pods, which are not allowed with these credentials: they need a role " +
			"with get and create on pods/exec in kube-system"
	case strings.Contains(message, "unknown command"):
		return "its agent is of an earlier version, without the command " + c.Name + ": upgrade it"
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "its Pod has not answered in time"
	case message != "":
		return message
	case err != nil:
		return fmt.Sprintf("running a command in its Pod failed: %v", err)
	}
	return "its agent's answer is not one of this version"
}

// run runs a command in the agent's container.
func run(ctx context.Context, client *kube.Client, pod string, command []string) (stdout, stderr []byte, err error) {
	var out, errs buffer
	err = Exec(ctx, client, pod, command, remotecommand.StreamOptions{Stdout: &out, Stderr: &errs})
	return out.all(), errs.all(), err
}

// buffer may be written to after it was read: the goroutine that copies a stream does not end with its context.
type buffer struct {
	sync.Mutex
	of bytes.Buffer
}

// Write implements io.Writer.
func (b *buffer) Write(p []byte) (int, error) {
	b.Lock()
	defer b.Unlock()
	return b.of.Write(p)
}

func (b *buffer) all() []byte {
	b.Lock()
	defer b.Unlock()
	return bytes.Clone(b.of.Bytes())
}

// Exec runs a command in the agent's container of a Pod in kube-system, with those streams that are not nil. Like
// "kubectl exec" it uses WebSocket, or SPDY if a proxy or an API server before Kubernetes 1.31 refuses that. It returns
// when ctx ends; the streams may still be used for a moment.
func Exec(ctx context.Context, client *kube.Client, pod string, command []string,
	streams remotecommand.StreamOptions) error {
	options := &corev1.PodExecOptions{Container: container, Command: command, Stdin: streams.Stdin != nil,
		Stdout: streams.Stdout != nil, Stderr: streams.Stderr != nil}
	url := client.Kubernetes.CoreV1().RESTClient().Post().Namespace(metav1.NamespaceSystem).Resource("pods").Name(pod).
		SubResource("exec").VersionedParams(options, scheme.ParameterCodec).URL()
	socket, err := remotecommand.NewWebSocketExecutor(client.Config, http.MethodGet, url.String())
	if err != nil {
		return err
	}
	spdy, err := remotecommand.NewSPDYExecutor(client.Config, http.MethodPost, url)
	if err != nil {
		return err
	}
	either, err := remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- either.StreamWithContext(ctx, streams) }() // waits for SPDY's answer even after ctx has ended
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
