package policyapi

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"
)

// TestConformance runs all of them. Where the kernel has no SCTP, their pods have no servers for it: tests of SCTP must
// be left out then.
func TestConformance(t *testing.T) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	must(t, err)
	set, err := kubernetes.NewForConfig(config)
	must(t, err)
	objects, err := client.NewWithWatch(config, client.Options{})
	must(t, err)
	must(t, v1alpha2.Install(objects.Scheme()))
	var c client.Client = objects
	if !hasSCTP() {
		c = interceptor.NewClient(objects, interceptor.Funcs{
			Create: func(ctx context.Context, to client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				dropSCTP(o)
				return to.Create(ctx, o, opts...)
			},
			Update: func(ctx context.Context, to client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
				dropSCTP(o)
				return to.Update(ctx, o, opts...)
			},
		})
	}
	s := suite.New(suite.Options{Client: c, ClientSet: set, KubeConfig: *config, CleanupBaseResources: true,
		EnableAllSupportedFeatures: true})
	s.Setup(t)
	s.Run(t, tests.ConformanceTests)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func hasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

// dropSCTP removes the containers of a StatefulSet that serve SCTP.
func dropSCTP(o client.Object) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok || u.GetKind() != "StatefulSet" {
		return
	}
	all, found, err := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
	if !found || err != nil {
		return
	}
	all = slices.DeleteFunc(all, func(c any) bool {
		env, _, _ := unstructured.NestedSlice(c.(map[string]any), "env")
		return slices.ContainsFunc(env, func(e any) bool {
			name, _, _ := unstructured.NestedString(e.(map[string]any), "name")
			return strings.Contains(name, string(corev1.ProtocolSCTP))
		})
	})
	err = unstructured.SetNestedSlice(u.Object, all, "spec", "template", "spec", "containers")
	if err != nil {
		panic(err) // what was just read is no slice
	}
}
