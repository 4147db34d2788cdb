package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ctl/agents"
	"github.com/fairlead-cni/fairlead/kube"
)

// AgentPods runs fairleadctl in the agent's pod of a node, as "kubectl exec" does, with the rights of the caller.
type AgentPods struct{ Client *kube.Client }

// Run implements Runner.
func (a AgentPods) Run(ctx context.Context, node string, args []string, in io.Reader, out, messages io.Writer) error {
	pod, err := a.find(ctx, node)
	if err != nil {
		return err
	}
	err = agents.Exec(ctx, a.Client, pod, append([]string{"fairleadctl"}, args...),
		remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: messages})
	if status := (*apierrors.StatusError)(nil); err != nil &&
		(errors.As(err, &status) && apierrors.IsForbidden(status) || strings.Contains(err.Error(), "forbidden")) {
		return fmt.Errorf("you may not run commands in the agent's pod kube-system/%s (create pods/exec): run this command "+
			"on the node, as root, with --node-local, or specify with --on-node how to run commands there: %w", pod, err)
	}
	return err
}

// find returns the name of the agent's pod.
func (a AgentPods) find(ctx context.Context, node string) (string, error) {
	list, err := a.Client.Kubernetes.CoreV1().Pods(metav1.NamespaceSystem).List(ctx,
		metav1.ListOptions{LabelSelector: api.AgentPodSelector, FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return "", fmt.Errorf("looking for the agent's pod: %w", err)
	}
	for _, p := range list.Items {
		if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			return p.Name, nil
		}
	}
	return "", errors.New("no agent pod runs there: run this command on the node, as root, with --node-local, " +
		"or specify with --on-node how to run commands there")
}

// Command runs fairleadctl through a command, such as "ssh root@{node} fairleadctl".
type Command string

// nodeInCommand stands for the node's name in a Command.
const nodeInCommand = "{node}"

// outputWait is how long to wait for output after a command has ended.
const outputWait = 2 * time.Second

// Run implements Runner.
func (c Command) Run(ctx context.Context, node string, args []string, in io.Reader, out, messages io.Writer) error {
	words := strings.Fields(strings.ReplaceAll(string(c), nodeInCommand, node))
	if len(words) == 0 {
		return errors.New("--on-node is empty")
	}
	cmd := exec.CommandContext(ctx, words[0], append(words[1:], args...)...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, messages, outputWait
	// An interrupt from the terminal is for this program alone, which ends the capture there and then reads the rest. And
	// several commands cannot prompt for passwords at once: without a terminal they fail and say why.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	to, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(to, in) // nothing is sent: this only waits for the end
		to.Close()
	}()
	return cmd.Wait()
}
