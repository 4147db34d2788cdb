// Package takedown removes Fairlead from all nodes of a cluster: it deletes the agents, runs "fairlead-agent uninstall"
// in a pod on each node, and waits until all are done. The pods belong to the DaemonSet kube-system/fairlead-uninstall,
// which is derived from the agents' own and deleted at the end.
package takedown

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"

	"github.com/fairlead-cni/fairlead/api"
)

// Names of the objects in kube-system, and the label of the pods that do the work.
const (
	agents   = "fairlead-agent"
	work     = "fairlead-uninstall"
	selector = "app.kubernetes.io/name=" + work
)

// held is a label that no node has: while it is in the DaemonSet's node selector, the DaemonSet has no pods.
const held = "fairlead.dev/when-agents-are-gone"

// ErrNotInstalled: there is neither an agent nor an uninstallation under way.
var ErrNotInstalled = errors.New("there is no DaemonSet kube-system/fairlead-agent: Fairlead is not installed, or its agents were already deleted. If they were deleted before the nodes were restored: apply the manifest again and repeat this, or run \"fairlead-agent uninstall\" on each node")

// Node is the progress of one node.
type Node struct {
	Name string `json:"name"`
	Done bool   `json:"done"`
	// Why is why it is not done.
	Why string `json:"why,omitempty"`
}

// Options are what Run needs.
type Options struct {
	Client kubernetes.Interface
	// Release, if it is set, is the Helm release that must have made the agents' DaemonSet.
	Release string
	// Tell is called with each progress message.
	Tell func(format string, args ...any)
}

// Poll is how often the cluster is read.
const Poll = time.Second

// Run does all of it, or as much as can be done until ctx ends; the error then says what is missing. It may be ended
// and run again at any time.
func Run(ctx context.Context, o Options) ([]Node, error) {
	r := &run{Options: o, done: map[string]bool{}}
	of, err := r.check(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := r.all(ctx, of)
	if err != nil {
		return nodes, &Unfinished{err}
	}
	return nodes, nil
}

// Unfinished is why not all nodes are restored after the work has begun: the next run resumes it.
type Unfinished struct{ why error }

func (u *Unfinished) Error() string { return u.why.Error() }
func (u *Unfinished) Unwrap() error { return u.why }

// all does Run's work, after the check. of is the agents' DaemonSet; nil: it is deleted already.
func (r *run) all(ctx context.Context, of *appsv1.DaemonSet) ([]Node, error) {
	if of != nil {
		if err := r.prepare(ctx, of); err != nil {
			return nil, err
		}
	}
	if err := r.removeAgents(ctx); err != nil {
		return nil, err
	}
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	nodes, err := r.await(ctx)
	if err != nil {
		return nodes, err
	}
	return nodes, r.remove(ctx, work, selector)
}

type run struct {
	Options
	done map[string]bool
}

func (r *run) sets() typedappsv1.DaemonSetInterface {
	return r.Client.AppsV1().DaemonSets(metav1.NamespaceSystem)
}

// check reads everything that is read later on, and changes nothing. It returns the agents' DaemonSet, nil if it is
// deleted already.
func (r *run) check(ctx context.Context) (*appsv1.DaemonSet, error) {
	of, err := r.set(ctx, agents)
	if err != nil {
		return nil, err
	}
	then, err := r.set(ctx, work)
	if err != nil {
		return nil, err
	}
	if of == nil && then == nil {
		return nil, ErrNotInstalled
	}
	if _, _, err := r.pods(ctx, selector); err != nil {
		return nil, fmt.Errorf("nothing was changed: %w", err)
	}
	if of == nil {
		r.Tell("resuming an interrupted uninstallation")
		return nil, nil
	}
	if by := of.Annotations["meta.helm.sh/release-name"]; r.Release != "" && by != r.Release {
		return nil, fmt.Errorf("the DaemonSet kube-system/%s does not belong to the Helm release %s: nothing was changed. If Fairlead was not installed with Helm, run fairleadctl uninstall", agents, r.Release)
	}
	if then != nil {
		r.Tell("there are both the agents and an interrupted uninstallation: it starts from the beginning")
	}
	return of, nil
}

// prepare creates the DaemonSet from that of the agents, without pods. One that exists beside the agents belongs to an
// uninstallation that did not complete before Fairlead was installed again: what its pods have done does not count for
// this one.
func (r *run) prepare(ctx context.Context, of *appsv1.DaemonSet) error {
	if err := r.remove(ctx, work, selector); err != nil {
		return err
	}
	if _, err := r.sets().Create(ctx, workOf(of), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating DaemonSet kube-system/%s: %w", work, err)
	}
	return nil
}

// set is a DaemonSet, nil if there is none.
func (r *run) set(ctx context.Context, name string) (*appsv1.DaemonSet, error) {
	set, err := r.sets().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading DaemonSet kube-system/%s: %w", name, err)
	}
	return set, nil
}

// workOf is the DaemonSet that does the work: on the agents' nodes, whatever their taints, with the agents' image and
// directories. Nodes without an agent have nothing to restore.
func workOf(of *appsv1.DaemonSet) *appsv1.DaemonSet {
	labels := map[string]string{"app.kubernetes.io/name": work, "app.kubernetes.io/part-of": "fairlead",
		"app.kubernetes.io/component": "uninstall"}
	spec := *of.Spec.Template.Spec.DeepCopy()
	agent := spec.Containers[0]
	spec.ServiceAccountName, spec.DeprecatedServiceAccount = "", ""
	spec.AutomountServiceAccountToken = new(bool)
	spec.NodeSelector = maps.Clone(spec.NodeSelector)
	if spec.NodeSelector == nil {
		spec.NodeSelector = map[string]string{}
	}
	spec.NodeSelector[held] = "yes"
	// A node may have been tainted after its agent was started, and would be left out silently.
	spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	unused := []string{"config", "api-access"}
	mounts := slices.DeleteFunc(agent.VolumeMounts, func(m corev1.VolumeMount) bool {
		return slices.Contains(unused, m.Name)
	})
	part := corev1.Container{Image: agent.Image, ImagePullPolicy: agent.ImagePullPolicy,
		SecurityContext: agent.SecurityContext, Env: agent.Env, VolumeMounts: mounts,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError}
	command := []string{"fairlead-agent", "uninstall", "--ovs-run-dir=" + ovsRunDir(agent)}
	first, stay := part, part
	first.Name, first.Command = "uninstall", command
	stay.Name, stay.Command = "stay", append(slices.Clone(command), "--stay")
	spec.InitContainers, spec.Containers = []corev1.Container{first}, []corev1.Container{stay}
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool {
		return slices.Contains(unused, v.Name)
	})
	everywhere := appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: work, Namespace: metav1.NamespaceSystem, Labels: labels},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": work}},
			UpdateStrategy: everywhere,
			Template:       corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}}}
}

// ovsRunDir is the directory that the agent's volume run-ovs is mounted at.
func ovsRunDir(agent corev1.Container) string {
	for _, m := range agent.VolumeMounts {
		if m.Name == "run-ovs" {
			return m.MountPath
		}
	}
	return "/run/openvswitch"
}

// removeAgents deletes the agents and waits until their pods are gone.
func (r *run) removeAgents(ctx context.Context) error {
	r.Tell("removing the agents; pods keep their network until their node is done")
	return r.remove(ctx, agents, api.AgentPodSelector)
}

// remove deletes a DaemonSet and waits until its pods are gone, except on nodes that do not answer: kubelet cannot end
// those.
func (r *run) remove(ctx context.Context, name, selector string) error {
	if err := r.sets().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting DaemonSet kube-system/%s: %w", name, err)
	}
	var left []string
	err := r.until(ctx, func() (bool, error) {
		pods, unready, err := r.pods(ctx, selector)
		left = nil
		for _, p := range pods {
			if unready[p.Spec.NodeName] == "" {
				left = append(left, p.Name)
			}
		}
		return len(left) == 0, err
	})
	if err != nil {
		return fmt.Errorf("waiting for the pods of DaemonSet kube-system/%s to terminate (%s): %w", name, strings.Join(left, ", "), err)
	}
	return nil
}

// start removes the label from the node selector, so that the pods start.
func (r *run) start(ctx context.Context) error {
	patch := []byte(`{"spec":{"template":{"spec":{"nodeSelector":{"` + held + `":null}}}}}`)
	if _, err := r.sets().Patch(ctx, work, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("starting DaemonSet kube-system/%s: %w", work, err)
	}
	return nil
}

// await waits until all nodes are done. If ctx ends first, the error names those that are not.
func (r *run) await(ctx context.Context) (nodes []Node, err error) {
	var undone []string
	err = r.until(ctx, func() (bool, error) {
		set, err := r.sets().Get(ctx, work, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		pods, unready, err := r.pods(ctx, selector)
		if err != nil {
			return false, err
		}
		nodes, undone = nil, nil
		for _, p := range pods {
			n := nodeOf(p, unready[p.Spec.NodeName])
			nodes = append(nodes, n)
			switch {
			case !n.Done:
				undone = append(undone, n.Name+": "+n.Why)
			case !r.done[n.Name]:
				r.done[n.Name] = true
				r.Tell("%s: restored", n.Name)
			}
		}
		slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
		seen := set.Status.ObservedGeneration >= set.Generation && int(set.Status.DesiredNumberScheduled) <= len(pods)
		return seen && len(undone) == 0, nil
	})
	if err != nil {
		slices.Sort(undone)
		return nodes, fmt.Errorf("%d of %d nodes are not restored (%s): %w", len(undone), len(nodes), strings.Join(undone, "; "), err)
	}
	return nodes, nil
}

// nodeOf is the progress of a pod's node.
func nodeOf(p corev1.Pod, unready string) Node {
	n := Node{Name: p.Spec.NodeName, Why: "its pod has not started"}
	for _, s := range p.Status.InitContainerStatuses {
		switch {
		case s.State.Terminated != nil && s.State.Terminated.ExitCode == 0:
			n.Done, n.Why = true, ""
		case s.State.Running != nil:
			n.Why = "in progress"
		}
		for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if t != nil && t.ExitCode != 0 {
				n.Why = strings.TrimSpace(t.Message)
			}
		}
		if w := s.State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" && s.LastTerminationState.Terminated == nil {
			n.Why = strings.TrimSpace(w.Reason + " " + w.Message)
		}
	}
	if p.DeletionTimestamp != nil { // of an earlier uninstallation: once it is gone, this one gets another pod there
		n.Done, n.Why = false, "its pod is being deleted"
	}
	if !n.Done && unready != "" {
		n.Why = unready
	}
	return n
}

// pods returns the pods of a selector, and why nodes do not answer.
func (r *run) pods(ctx context.Context, selector string) ([]corev1.Pod, map[string]string, error) {
	pods, err := r.Client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, nil, fmt.Errorf("listing pods: %w", err)
	}
	nodes, err := r.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("listing Nodes: %w", err)
	}
	unready := map[string]string{}
	for _, n := range nodes.Items {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown {
				unready[n.Name] = "the node does not answer: " + c.Message
			}
		}
	}
	return pods.Items, unready, nil
}

// until polls until so returns true, or ctx ends. Errors of the API server do not end it: the network may change.
func (r *run) until(ctx context.Context, so func() (bool, error)) error {
	for {
		ok, err := so()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(errors.New("timeout"), err)
		case <-time.After(Poll):
		}
	}
}
