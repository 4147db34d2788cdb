package uml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/apitest"
	"github.com/fairlead-cni/fairlead/test/kubebin"
)

// inGuest in the environment makes the test binary start a cluster, with the program that it names, and use it.
const inGuest = "FAIRLEAD_UML_TEST_KUBE"

// etcd and a real API server come up in a guest and keep what they are told.
func TestUMLKubeAPIServer(t *testing.T) {
	program, err := kubebin.Get(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := command("/", "")
	c.Argv, c.Env = []string{self}, append(c.Env, inGuest+"="+program)
	c.Memory, c.Timeout = 2048, 5*time.Minute
	start := time.Now()
	exit, stdout, stderr, err := output(t, c)
	if err != nil || exit != 0 || !strings.HasSuffix(stdout, "the API server has the Node uml\n") {
		t.Errorf("exit %d, error %v, output:\n%s%s", exit, err, stdout, stderr)
	}
	t.Logf("%s, after %s", strings.TrimSpace(stdout), time.Since(start).Round(time.Second))
}

func useCluster(program string) (err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "kube")
	if err != nil {
		return err
	}
	s, err := apitest.Start(ctx, program, dir)
	if err != nil {
		return err
	}
	defer s.Stop()
	nodes := s.Admin().CoreV1().Nodes()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "uml"}}
	if _, err := nodes.Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return err
	}
	list, err := nodes.List(ctx, metav1.ListOptions{})
	if err == nil && (len(list.Items) != 1 || list.Items[0].UID == "") {
		err = errors.New("the API server has other Nodes than it was told")
	}
	if err == nil {
		fmt.Println("the API server has the Node", list.Items[0].Name)
	}
	return err
}
