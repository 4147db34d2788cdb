package crash

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// kubeAPI is the Kubernetes API of a lab, for tests that break it.
type kubeAPI struct {
	lab    *lab.Lab
	plane  controlplane.Plane
	client *kubernetes.Clientset
	rights *rbacv1.ClusterRoleBinding // of the agents
}

func newKubeAPI(t *testing.T, l *lab.Lab) *kubeAPI {
	t.Helper()
	a := &kubeAPI{lab: l}
	var err error
	a.plane, err = l.Plane()
	must(t, err)
	a.client, err = l.Client()
	must(t, err)
	a.rights, err = a.client.RbacV1().ClusterRoleBindings().Get(t.Context(), "fairlead-agent", metav1.GetOptions{})
	must(t, err)
	a.rights.ObjectMeta = metav1.ObjectMeta{Name: a.rights.Name}
	return a
}

// pods are those of the tests; the control plane's are in other namespaces.
func (a *kubeAPI) pods(t *testing.T) (pods []*corev1.Pod) {
	t.Helper()
	ctx := labtest.Within(t, time.Minute)
	list, err := a.client.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	must(t, err)
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return pods
}

// change creates and deletes pods on node1 as far as the API allows it at this moment: catchUp does the rest.
func (a *kubeAPI) change(ctx context.Context, add, del []string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	pods := a.client.CoreV1().Pods(metav1.NamespaceDefault)
	var all sync.WaitGroup
	for _, name := range del {
		all.Go(func() { _ = pods.Delete(ctx, name, metav1.DeleteOptions{}) })
	}
	for _, name := range add {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"churn": ""}},
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "none"}}}}
		all.Go(func() { _, _ = pods.Create(ctx, pod, metav1.CreateOptions{}) })
	}
	all.Wait()
}

// catchUp creates and deletes pods until those of change are the wanted ones.
func (a *kubeAPI) catchUp(t *testing.T, wanted map[string]bool) {
	t.Helper()
	eventually(t, time.Minute, func() (wrong []string) {
		list, err := a.client.CoreV1().Pods(metav1.NamespaceDefault).List(labtest.Within(t, time.Minute),
			metav1.ListOptions{LabelSelector: "churn"})
		if err != nil {
			return []string{err.Error()}
		}
		var add, del []string
		have := map[string]bool{}
		for _, p := range list.Items {
			have[p.Name] = p.DeletionTimestamp == nil
			if p.DeletionTimestamp != nil && wanted[p.Name] {
				wrong = append(wrong, p.Name+" has not ended, and is to come again")
			} else if p.DeletionTimestamp == nil && !wanted[p.Name] {
				del = append(del, p.Name)
			}
		}
		for name := range wanted {
			if _, ok := have[name]; !ok {
				add = append(add, name)
			}
		}
		a.change(t.Context(), add, del)
		if len(add)+len(del) > 0 {
			wrong = append(wrong, fmt.Sprintf("to be made: %v, to be deleted: %v", add, del))
		}
		return wrong
	})
}

// heal restores the API server and the access of all clients.
func (a *kubeAPI) heal(t *testing.T) {
	t.Helper()
	a.nft(t, "add table inet cut; delete table inet cut")
	for _, part := range controlplane.Parts() {
		must(t, a.plane.Resume(part))
	}
	must(t, a.plane.StartAll(labtest.Within(t, 2*time.Minute), func(controlplane.Part) {}))
	eventually(t, time.Minute, func() []string {
		err := a.plane.Serves(t.Context(), a.client, controlplane.APIServer)
		if err == nil {
			ctx := labtest.Within(t, time.Minute)
			_, err = a.client.RbacV1().ClusterRoleBindings().Create(ctx, a.rights, metav1.CreateOptions{})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return []string{err.Error()}
		}
		return nil
	})
}

func (a *kubeAPI) nft(t *testing.T, command string) {
	t.Helper()
	_, err := a.lab.NodeExec(labtest.Within(t, time.Minute), underlay.ControlPlane, "nft", command)
	must(t, err)
}
