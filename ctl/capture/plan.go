package capture

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/kube"
)

// Job is a capture on one node.
type Job struct {
	Node string
	Ends
}

// Plan finds the pods' nodes through the Kubernetes API.
func Plan(ctx context.Context, client *kube.Client, ends Ends) ([]Job, error) {
	pod, err := find(ctx, client, ends.Pod)
	if err != nil || ends.To == "" {
		return []Job{{pod.node, ends}}, err
	}
	to, err := find(ctx, client, ends.To)
	if err != nil || pod.node == to.node {
		return []Job{{pod.node, ends}}, err
	}
	return []Job{{pod.node, Ends{Pod: ends.Pod, Addrs: to.addrs}}, {to.node, Ends{Pod: ends.To, Addrs: pod.addrs}}}, nil
}

// pod is where a pod is.
type pod struct {
	node  string
	addrs []netip.Addr
}

func find(ctx context.Context, client *kube.Client, name string) (pod, error) {
	namespace, short, _ := strings.Cut(name, "/")
	p, err := client.Kubernetes.CoreV1().Pods(namespace).Get(ctx, short, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return pod{}, fmt.Errorf("there is no pod %s", name)
	} else if err != nil {
		return pod{}, fmt.Errorf("reading pod %s: %w", name, err)
	}
	out := pod{node: p.Spec.NodeName}
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			out.addrs = append(out.addrs, a)
		}
	}
	switch {
	case p.Spec.HostNetwork:
		return out, fmt.Errorf("pod %s uses its node's network, and has no interface of its own", name)
	case p.Status.Phase != corev1.PodRunning && p.Status.Phase != corev1.PodPending:
		return out, fmt.Errorf("pod %s has ended", name)
	case out.node == "" || len(out.addrs) == 0:
		return out, fmt.Errorf("pod %s has no node or no address yet", name)
	}
	return out, nil
}

// stopGrace is how much longer a node would capture than the caller, which ends it.
const stopGrace = 10 * time.Second

// Args are the arguments of fairleadctl on that node. It ends with its standard input, and by itself if that stays
// open, but not before the caller, which counts the duration from the start of the last node; all start within within.
func (j Job) Args(l Limits, within time.Duration) []string {
	args := []string{"capture", j.Pod, "--node-local", "--until-input-ends", "--quiet", "--write=-",
		"--duration=" + (within + l.Duration + stopGrace).String(), "--packets=" + strconv.Itoa(l.Packets),
		"--size=" + strconv.FormatInt(l.Bytes+int64(l.SnapLen)+maxTag+blockBytes, 10), // so that the caller's limit is reached first
		"--snaplen=" + strconv.Itoa(l.SnapLen)}
	if j.To != "" {
		args = append(args, "--to="+j.To)
	}
	if len(j.Addrs) > 0 {
		var texts []string
		for _, a := range j.Addrs {
			texts = append(texts, a.String())
		}
		args = append(args, "--to="+strings.Join(texts, ","))
	}
	return args
}

// ErrInputEnded is the cause if the caller of Args has ended the capture.
var ErrInputEnded = errors.New("standard input has ended")
