package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/lab/manifest"
	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
)

// Verb is a CNI operation.
type Verb string

// The verbs of CNI.
const (
	ADD    Verb = "ADD"
	DEL    Verb = "DEL"
	CHECK  Verb = "CHECK"
	GC     Verb = "GC"
	STATUS Verb = "STATUS"
)

// CNI calls a verb through libcni on a node and returns its output: the result of ADD as JSON, an error as the JSON of
// the CNI spec.
//
// ADD, DEL and CHECK take one pod. They use the pod's sandbox if it has one, even if the runner created it; the runner
// ignores a pod for which DEL was called. ADD creates a sandbox for a pod that has none, and its DEL removes that
// sandbox; DEL of a pod without a sandbox is a DEL of an unknown container. STATUS takes no pod. GC takes the pods to
// leave out of the valid attachments, which are otherwise all of the node's.
func (l *Lab) CNI(ctx context.Context, node string, verb Verb, pods ...string) (string, error) {
	h, _, err := l.node(node)
	if err != nil {
		return "", err
	}
	for _, pod := range pods {
		if err := checkPodName(pod); err != nil {
			return "", err
		}
	}
	cni := sandbox.CNI{Node: h}
	switch verb {
	case STATUS:
		if len(pods) > 0 {
			return "", errors.New("STATUS takes no pod: it is about the node")
		}
		err = cni.Status(ctx)
		return sandbox.Printed(nil, err), err
	case GC:
		err = l.gc(ctx, cni, pods)
		return sandbox.Printed(nil, err), err
	case ADD, DEL, CHECK:
		if len(pods) != 1 {
			return "", fmt.Errorf("%s takes one pod, NAMESPACE/NAME", verb)
		}
		return l.cniPod(ctx, cni, verb, pods[0])
	default:
		return "", fmt.Errorf("%q is none of ADD, DEL, CHECK, GC and STATUS", verb)
	}
}

func (l *Lab) gc(ctx context.Context, cni sandbox.CNI, leaveOut []string) error {
	records, err := l.Records().List()
	if err != nil {
		return err
	}
	return cni.GC(ctx, slices.DeleteFunc(records, func(r *sandbox.Record) bool {
		return r.Node != cni.Node.Name || r.ContainerID == "" || slices.Contains(leaveOut, r.Pod())
	}))
}

// cniPod calls ADD, DEL or CHECK for one pod while the runner is locked out of it.
func (l *Lab) cniPod(ctx context.Context, cni sandbox.CNI, verb Verb, pod string) (string, error) {
	unlock, err := l.Records().Lock(pod)
	if err != nil {
		return "", err
	}
	defer unlock()
	rec, err := l.Records().Load(pod)
	if err != nil {
		return "", err
	}
	if rec != nil && rec.Node != cni.Node.Name {
		return "", fmt.Errorf("pod %s is on %s, not on %s", pod, rec.Node, cni.Node.Name)
	}
	var result types.Result
	switch verb {
	case ADD:
		result, err = l.addByHand(ctx, cni, pod, rec)
	case DEL:
		err = l.delByHand(ctx, cni, pod, rec)
	default:
		if rec == nil || rec.ContainerID == "" {
			return "", fmt.Errorf("pod %s has no sandbox to check", pod)
		}
		err = cni.Check(ctx, rec)
	}
	return sandbox.Printed(result, err), err
}

func (l *Lab) addByHand(ctx context.Context, cni sandbox.CNI, pod string, rec *sandbox.Record) (types.Result, error) {
	if rec != nil && rec.ContainerID != "" {
		return l.Records().Attach(ctx, cni, rec)
	}
	obj, err := l.pod(ctx, pod)
	if err != nil {
		return nil, err
	}
	if rec == nil {
		rec = stranger(pod, cni.Node.Name)
		rec.ByHand = obj == nil || obj.Spec.NodeName != cni.Node.Name
		if !rec.ByHand {
			rec.UID = string(obj.UID)
		}
	}
	if err := l.Records().Create(cni, rec, obj); err != nil {
		return nil, err
	}
	// A failed ADD leaves the sandbox for a second attempt, or for DEL.
	return l.Records().Attach(ctx, cni, rec)
}

func (l *Lab) delByHand(ctx context.Context, cni sandbox.CNI, pod string, rec *sandbox.Record) error {
	switch {
	case rec == nil || rec.ContainerID == "":
		unknown := stranger(pod, cni.Node.Name)
		id := sha256.Sum256([]byte(pod))
		unknown.ContainerID = hex.EncodeToString(id[:])
		return cni.Del(ctx, unknown)
	case rec.ByHand:
		if err := l.Records().Destroy(ctx, cni, rec); err != nil {
			return err
		}
		return l.Records().Forget(pod)
	default:
		return l.Records().Detach(ctx, cni, rec)
	}
}

// stranger is the record of a pod without a manifest.
func stranger(pod, node string) *sandbox.Record {
	namespace, name, _ := strings.Cut(pod, "/")
	return &sandbox.Record{Namespace: namespace, Name: name, Node: node, ByHand: true}
}

// pod returns the Pod, nil if there is none. While the API server is unreachable there is none.
func (l *Lab) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	namespace, short, _ := strings.Cut(name, "/")
	if l.spec.Cluster == Kube {
		client, err := l.Client()
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // can take seconds on a busy machine
		defer cancel()
		pod, err := client.CoreV1().Pods(namespace).Get(ctx, short, metav1.GetOptions{})
		if err != nil {
			return nil, nil
		}
		return pod, nil
	}
	obj, err := l.Manifests().Get(manifest.Ref{Kind: "Pod", Namespace: namespace, Name: short})
	if err != nil || obj == nil {
		return nil, err
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, errors.New("the stored manifest of " + name + " is not a Pod")
	}
	return pod, nil
}
