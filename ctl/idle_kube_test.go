package ctl

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/diagnose/verdict"
	"github.com/fairlead-cni/fairlead/policy"
)

// The targets of a single policy are read from the API server, until the policy affects a pod.
func TestKubePolicyThatIsIdle(t *testing.T) {
	c := newFixture(t)
	doc := filepath.Join(t.TempDir(), "policies.yaml")
	text := ""
	for name, spec := range map[string]string{
		"lost":     "{podSelector: {matchLabels: {app: lost}}}",
		"busy":     "{podSelector: {matchLabels: {app: web}}}",
		"all":      "{podSelector: {}}",
		"misnamed": "{podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: htpp}, {port: http}]}]}",
		"peers":    "{podSelector: {matchLabels: {app: web}}, egress: [{ports: [{port: dns, protocol: UDP}]}]}",
		"unknown":  "{podSelector: {matchLabels: {app: web}}, egress: [{ports: [{port: none, protocol: UDP}]}]}",
	} {
		text += fmt.Sprintf("---\n{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s, namespace: default}, "+
			"spec: %s}\n", name, spec)
	}
	if err := os.WriteFile(doc, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(namespace, name, port string, protocol corev1.Protocol) {
		pods := c.client.Kubernetes.CoreV1().Pods(namespace)
		_, err := pods.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none",
				Ports: []corev1.ContainerPort{{Name: port, ContainerPort: 53, Protocol: protocol}}}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
			c.must(pods.Delete(context.Background(), name, now))
		})
	}
	c.must(c.s.Apply(t.Context(), doc, ""))
	t.Cleanup(func() {
		c.must(c.s.Objects().RemoveAll(context.Background(), "networkpolicies.v1.networking.k8s.io", "default", ""))
	})
	run("default", "web", "http", corev1.ProtocolTCP)
	run("kube-public", "dns", "dns", corev1.ProtocolUDP)
	for name, want := range map[string][]policy.NamedPort{"lost": {}, "busy": nil, "all": nil, "gone": nil, "peers": nil,
		"misnamed": {{Protocol: policy.TCP, Name: "htpp"}}, "unknown": {{Protocol: policy.UDP, Name: "none"}}} {
		got, err := verdict.Idle(t.Context(), c.client, policy.Ref{Kind: "NetworkPolicy", Namespace: "default", Name: name})
		switch {
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case got == nil != (want == nil):
			t.Errorf("%s does nothing: %v, want %v", name, got, want)
		case got != nil && !slices.Equal(got.Ports, want):
			t.Errorf("%s does nothing by the ports %v, want %v", name, got.Ports, want)
		}
	}
}
