package chart

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/apitest"
)

// The agent has to be privileged: otherwise Kubernetes rejects its bidirectional mounts.
func TestKubeAgentIsPrivileged(t *testing.T) {
	var shared apitest.Shared
	t.Cleanup(func() {
		if err := shared.Stop(); err != nil {
			t.Error(err)
		}
	})
	sets := shared.Get(t).Admin().AppsV1().DaemonSets("kube-system")
	for _, privileged := range []bool{true, false} {
		set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "fairlead-agent"}}
		set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		set.Spec.Template.Labels, set.Spec.Template.Spec = set.Spec.Selector.MatchLabels, podsOf(t, "")["fairlead-agent"]
		set.Spec.Template.Spec.Containers[0].SecurityContext.Privileged = &privileged
		_, err := sets.Create(t.Context(), set, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		const refused = "Bidirectional mount propagation is available only to privileged containers"
		if privileged && err != nil || !privileged && (err == nil || !strings.Contains(err.Error(), refused)) {
			t.Errorf("privileged %t: %v", privileged, err)
		}
	}
}
