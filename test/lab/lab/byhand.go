package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/test/lab/manifest"
	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
)

// cniPod calls ADD, DEL or CHECK for one pod while the runner keeps away from it.
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
	obj, err := l.pod(pod)
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
	// A failed ADD leaves the sandbox for a second try, or for DEL.
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

// stranger is the record of a pod that no manifest tells of.
func stranger(pod, node string) *sandbox.Record {
	namespace, name, _ := strings.Cut(pod, "/")
	return &sandbox.Record{Namespace: namespace, Name: name, Node: node, ByHand: true}
}

// pod returns the manifest of a pod, nil if there is none.
func (l *Lab) pod(name string) (*corev1.Pod, error) {
	namespace, short, _ := strings.Cut(name, "/")
	obj, err := l.Manifests().Get(manifest.Ref{Kind: "Pod", Namespace: namespace, Name: short})
	if err != nil || obj == nil {
		return nil, err
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, errors.New("the stored manifest of " + name + " is no Pod")
	}
	return pod, nil
}
