package takedown

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// A node that was tainted after its agent had started is restored as well, whatever the agents tolerate.
func TestWorkToleratesAllTaints(t *testing.T) {
	agents := &appsv1.DaemonSet{}
	agents.Spec.Template.Spec = corev1.PodSpec{Containers: []corev1.Container{{Name: "agent"}},
		Tolerations: []corev1.Toleration{{Key: "ours", Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64)}}}
	for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
		for _, key := range []string{"ours", "maintenance"} {
			tolerated := false
			for _, tol := range workOf(agents).Spec.Template.Spec.Tolerations {
				taint := &corev1.Taint{Key: key, Value: "any", Effect: effect}
				tolerated = tolerated || tol.ToleratesTaint(klog.Background(), taint, false)
				if tol.TolerationSeconds != nil {
					t.Errorf("it stays on nodes with %s only for a while", key)
				}
			}
			if !tolerated {
				t.Errorf("it is not started on nodes with %s:%s", key, effect)
			}
		}
	}
}
