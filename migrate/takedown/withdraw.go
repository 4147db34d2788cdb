package takedown

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Withdraw ends an uninstallation that did not complete, if Fairlead was installed again since, and reports whether
// there was one: its pods would uninstall nodes at their next boot, and new nodes. An uninstallation deletes the agents
// before it starts its pods, so both exist only in that case.
func Withdraw(ctx context.Context, client kubernetes.Interface) (bool, error) {
	r := run{Options: Options{Client: client}}
	then, err := r.set(ctx, work)
	if err != nil || then == nil || !started(then) {
		return false, err
	}
	of, err := r.set(ctx, agents)
	if err != nil || of == nil || of.DeletionTimestamp != nil {
		return false, err
	}
	// An uninstallation that starts in the meantime is a different one.
	same := &metav1.Preconditions{UID: &then.UID, ResourceVersion: &then.ResourceVersion}
	err = r.sets().Delete(ctx, work, metav1.DeleteOptions{Preconditions: same})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("deleting DaemonSet kube-system/%s: %w", work, err)
	}
	return true, nil
}

// started reports whether the DaemonSet has pods.
func started(set *appsv1.DaemonSet) bool {
	_, is := set.Spec.Template.Spec.NodeSelector[held]
	return !is
}
