package podcidr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// The names of kubeadm's objects.
const (
	kcmLabel = "component=kube-controller-manager"
	kcmLease = "kube-controller-manager"
	// controllerLease is fairlead-controller's Lease.
	controllerLease = "fairlead-controller"
	kubeadmConfig   = "kubeadm-config"
	kcmManifest     = "/etc/kubernetes/manifests/kube-controller-manager.yaml"
)

// leaseStale is the age from which a Lease has no holder. It is renewed every few seconds; the rest is for clock skew.
const leaseStale = 2 * time.Minute

// readTimeout bounds all requests together: an agent's start or a user waits for them.
const readTimeout = 5 * time.Second

// Read reads the Facts. What cannot be read, is forbidden or absent, is left unknown, and recorded in Unread. objects
// is a client of the same API server.
func Read(ctx context.Context, client kubernetes.Interface, objects dynamic.Interface) Facts {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	r := reader{client: client, objects: objects, facts: Facts{Refused: map[string]Refusal{}}}
	kcm := r.kcm(ctx)
	config := r.kubeadm(ctx)
	if r.facts.Runs == Unknown {
		r.facts.Runs, r.facts.RunsNot = r.lease(ctx, kcmLease)
	}
	r.services(ctx)
	r.events(ctx)
	r.setSettings(kcm, config)
	r.nodeIPAM(ctx)
	return r.facts
}

// nodeIPAM reads the state of fairlead-controller's allocator, which overrides what was read before. If it does not run
// while another allocator does, its objects are leftovers.
func (r *reader) nodeIPAM(ctx context.Context) {
	ranges := r.ranges(ctx)
	if len(ranges) == 0 {
		return
	}
	runs, not := r.lease(ctx, controllerLease)
	f := &r.facts
	if runs == No && f.Allocates == Yes && f.Runs != No {
		f.Unread = append(f.Unread, "PodCIDRRanges exist, but are not kept up to date: "+not+
			". They are treated as leftovers, because kube-controller-manager assigns podCIDRs")
		return
	}
	f.NodeIPAM, f.Ranges, f.RangesFrom = &NodeIPAM{}, nil, "nodeIPAM.clusterCIDRs of fairlead-controller (PodCIDRRange objects)"
	f.Runs, f.RunsNot, f.Allocates, f.AllocatesNot = runs, not, Yes, ""
	for _, o := range ranges {
		cluster, err := netip.ParsePrefix(o.Spec.ClusterCIDR)
		one := Range{Cluster: cluster, Mask: o.Spec.NodeMask}
		if err == nil {
			err = one.Check()
		}
		if r.unread("PodCIDRRange "+o.Name, err) {
			continue
		}
		f.Ranges = append(f.Ranges, one)
		ready := meta.FindStatusCondition(o.Status.Conditions, api.RangeReady)
		if ready != nil && ready.Reason == api.ReasonOtherAllocatorActive {
			f.NodeIPAM.Stopped = ready.Message
		}
	}
}

// ranges reads the PodCIDRRanges, which exist if nodeIPAM.enableNodeIPAM is set.
func (r *reader) ranges(ctx context.Context) []api.PodCIDRRange {
	list, err := r.objects.Resource(api.RangeResource).List(ctx, metav1.ListOptions{})
	if r.unread("the PodCIDRRanges of fairlead-controller", err) {
		return nil
	}
	var out []api.PodCIDRRange
	for i := range list.Items {
		var one api.PodCIDRRange
		err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &one)
		if !r.unread("PodCIDRRange "+list.Items[i].GetName(), err) {
			out = append(out, one)
		}
	}
	return out
}

// OtherAllocator is the allocator besides fairlead-controller: kube-controller-manager, according to the command of its
// mirror Pod. Empty: none was found.
func OtherAllocator(ctx context.Context, client kubernetes.Interface) (who string, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	r := reader{client: client}
	flags := r.kcm(ctx)
	if len(r.facts.Unread) > 0 {
		return "", errors.New(r.facts.Unread[0])
	}
	if flags == nil {
		return "", nil
	}
	if allocates, _ := flags.allocates(); allocates != Yes {
		return "", nil
	}
	return "kube-controller-manager, whose Pod " + r.pod + " has --allocate-node-cidrs", nil
}

type reader struct {
	client  kubernetes.Interface
	objects dynamic.Interface
	facts   Facts
	pod     string // the kube-controller-manager whose flags are used
}

// unread reports whether err is an error, and records what could not be read, unless it does not exist.
func (r *reader) unread(what string, err error) bool {
	if apierrors.IsForbidden(err) {
		err = errors.New("forbidden")
	}
	if err != nil && !apierrors.IsNotFound(err) {
		r.facts.Unread = append(r.facts.Unread, fmt.Sprintf("%s could not be read: %v", what, err))
	}
	return err != nil
}

// kcm returns the flags of kube-controller-manager from its mirror Pod; nil if none is found. Of several, a ready one
// is preferred.
func (r *reader) kcm(ctx context.Context) flags {
	list, err := r.client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: kcmLabel})
	if r.unread("the Pods of kube-controller-manager", err) || len(list.Items) == 0 {
		return nil
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Pod) int { return cmp.Compare(podProblem(&a), podProblem(&b)) })
	pod := list.Items[0]
	r.pod = "kube-system/" + pod.Name
	r.facts.Runs = Yes
	if trouble := podProblem(&pod); trouble != "" {
		r.facts.Runs, r.facts.RunsNot = No, "Pod "+r.pod+" "+trouble
	}
	if pod.Annotations[corev1.MirrorPodAnnotationKey] != "" || pod.Annotations["kubernetes.io/config.source"] == "file" {
		r.facts.Manifest = kcmManifest
	}
	for i := range list.Items[1:] {
		if !slices.Equal(commandOf(&pod), commandOf(&list.Items[i+1])) {
			r.facts.Unread = append(r.facts.Unread, fmt.Sprintf("Pod kube-system/%s has a different command than %s, which is used here",
				list.Items[i+1].Name, r.pod))
		}
	}
	return parseCommand(commandOf(&pod))
}

// commandOf is the command of the pod's first container.
func commandOf(pod *corev1.Pod) []string {
	if len(pod.Spec.Containers) == 0 {
		return nil
	}
	return slices.Concat(pod.Spec.Containers[0].Command, pod.Spec.Containers[0].Args)
}

// podProblem is why a pod is not ready; empty if it is ready, or nothing is known.
func podProblem(pod *corev1.Pod) string {
	ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	if ready || len(pod.Status.Conditions) == 0 {
		return ""
	}
	for _, c := range pod.Status.ContainerStatuses {
		var parts []string
		if w := c.State.Waiting; w != nil {
			parts = append(parts, "waits: "+w.Reason)
		}
		for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if t != nil {
				parts = append(parts, fmt.Sprintf("ended with exit code %d at %s", t.ExitCode, t.FinishedAt.UTC().Format(time.TimeOnly)))
				break
			}
		}
		if len(parts) > 0 {
			return strings.Join(parts, ", ")
		}
	}
	return "is not ready"
}

// kubeadm returns kubeadm's settings; nil if there are none.
func (r *reader) kubeadm(ctx context.Context) *kubeadm {
	what := "ConfigMap kube-system/" + kubeadmConfig
	m, err := r.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, kubeadmConfig, metav1.GetOptions{})
	if r.unread(what, err) {
		return nil
	}
	config, err := parseKubeadm(m.Data["ClusterConfiguration"])
	if r.unread(what, err) {
		return nil
	}
	r.facts.Kubeadm = true
	r.facts.PodSubnet = report.Join(config.PodSubnet, ",")
	return &config
}

// lease reports whether the holder of a Lease runs, in a Pod or not, and why not.
func (r *reader) lease(ctx context.Context, name string) (runs Answer, not string) {
	l, err := r.client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
	switch {
	case r.unread("Lease kube-system/"+name, err) || l.Spec.RenewTime == nil:
		return Unknown, ""
	case time.Since(l.Spec.RenewTime.Time) > leaseStale:
		return No, "its Lease kube-system/" + name + " has not been renewed since " +
			l.Spec.RenewTime.UTC().Format(time.DateTime) + " UTC"
	case l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity == "":
		return No, "no holder of its Lease kube-system/" + name + ": it was stopped"
	}
	return Yes, ""
}

// services reads the ServiceCIDR objects, which exist since Kubernetes 1.33.
func (r *reader) services(ctx context.Context) {
	list, err := r.client.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if r.unread("the ServiceCIDRs", err) {
		return
	}
	for _, s := range list.Items {
		for _, c := range s.Spec.CIDRs {
			if p, err := netip.ParsePrefix(c); err == nil {
				r.facts.Services = append(r.facts.Services, p.Masked())
				r.facts.ServicesFrom = "the ServiceCIDR objects"
			}
		}
	}
}

// events reads the allocator's CIDRNotAvailable Events, which are of type Normal.
func (r *reader) events(ctx context.Context) {
	list, err := r.client.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: "reason=CIDRNotAvailable,involvedObject.kind=Node"})
	if r.unread("the CIDRNotAvailable Events", err) {
		return
	}
	for _, e := range list.Items {
		before := r.facts.Refused[e.InvolvedObject.Name]
		now := Refusal{Count: before.Count + max(1, int(e.Count)), Last: e.LastTimestamp.Time}
		if before.Last.After(now.Last) {
			now.Last = before.Last
		}
		r.facts.Refused[e.InvolvedObject.Name] = now
	}
}

// setSettings takes the settings from the most reliable source that has them.
func (r *reader) setSettings(kcm flags, config *kubeadm) {
	f := &r.facts
	from := "the command of Pod " + r.pod
	if kcm == nil && config != nil {
		kcm, from = config.command(), "ConfigMap kube-system/"+kubeadmConfig
		if f.Manifest == "" {
			f.Manifest = kcmManifest
		}
	}
	if kcm == nil {
		return
	}
	f.Allocates, f.AllocatesNot = kcm.allocates()
	ranges, err := kcm.ranges()
	r.unread(from, err)
	if len(ranges) > 0 {
		f.Ranges, f.RangesFrom = ranges, from
	}
	fromFlags, err := parseCIDRs(kcm["service-cluster-ip-range"])
	r.unread(from, err)
	f.LeftOut = fromFlags
	if len(f.Services) == 0 && len(fromFlags) > 0 {
		f.Services, f.ServicesFrom = fromFlags, from
	}
	if len(f.Services) == 0 && config != nil {
		f.Services, f.ServicesFrom = config.ServiceSubnet, "ConfigMap kube-system/"+kubeadmConfig
	}
}
