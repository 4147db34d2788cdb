package controller

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/api"
)

// childServer in the environment, "URL CA TOKEN", makes the test binary a controller of that API server until it is
// killed.
const childServer = "FAIRLEAD_TEST_CONTROLLER_SERVER"

func controlForEver(where string) {
	f := strings.Fields(where)
	cfg := &rest.Config{Host: f[0], BearerToken: f[2], TLSClientConfig: rest.TLSClientConfig{CAFile: f[1]},
		QPS: 1000, Burst: 1000}
	client, err := dynamic.NewForConfig(cfg)
	typed, terr := kubernetes.NewForConfig(cfg)
	if err == nil && terr == nil {
		o := Options{Client: client, Kubernetes: typed, Intervals: short(), Log: logr.Discard()}
		o.Config.APIAddress = netip.MustParseAddr("127.0.0.1")
		o.Config.Reclaim = api.Reclaim{Enabled: true, GracePeriod: 100 * time.Millisecond}
		err = Run(context.Background(), o)
	}
	fmt.Fprintln(os.Stderr, err, terr)
	os.Exit(1)
}

// child starts a controller in a process of its own.
func (c *cluster) child() *exec.Cmd {
	c.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childServer+"="+c.s.URL+" "+c.s.CA()+" "+c.token)
	cmd.Stderr = os.Stderr
	must(c.t, cmd.Start())
	return cmd
}

// kill ends a controller with SIGKILL, and lets another one become leader at once instead of waiting for the Lease.
func (c *cluster) kill(cmd *exec.Cmd) {
	c.t.Helper()
	must(c.t, cmd.Process.Kill())
	cmd.Wait() // the error is that it was killed
	leases := c.s.Admin().CoordinationV1().Leases(metav1.NamespaceSystem)
	err := leases.Delete(c.t.Context(), leaseName, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		c.t.Fatal(err)
	}
}

// Whenever the controller is killed, and whichever becomes leader next: running pods keep their addresses, and lost
// addresses are reclaimed in the end.
func TestKubeReclaimKilled(t *testing.T) {
	c := newCluster(t)
	c.empty(t)
	t.Cleanup(func() { c.empty(t) })
	c.node("lives")
	c.node("down")
	var living []string
	for i := range 20 {
		ip, node := fmt.Sprintf("10.4.0.%d", i+1), []string{"lives", "down"}[i%2]
		c.hold(ip, node, "x", nil)
		living = append(living, ip+" x")
	}
	stays := func(when string) (lost int) {
		t.Helper()
		held := strings.Split(c.holders(), ", ")
		for _, want := range living {
			found := false
			for _, h := range held {
				found = found || h == want
			}
			if !found {
				t.Fatalf("%s: %s is not held any more", when, want)
			}
		}
		return len(held) - len(living)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var left []int
	for round := range 6 {
		node := fmt.Sprint("gone", round)
		c.node(node)
		for i := range 30 {
			c.hold(fmt.Sprintf("10.4.%d.%d", round+1, i+1), node, "y", nil)
		}
		c.deleteNode(t.Context(), node)
		child := c.child()
		before := stays("before")
		// It is killed while it reclaims: soon after the first address is free, or before.
		until := time.Now().Add(time.Duration(1000+random.IntN(9000)) * time.Millisecond)
		for time.Now().Before(until) && stays("while a controller works") == before {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(random.IntN(60)) * time.Millisecond)
		c.kill(child)
		left = append(left, stays("after a kill"))
	}
	t.Logf("lost addresses left after each kill: %v", left)
	child := c.child()
	defer c.kill(child)
	c.waits(func() string {
		if lost := stays("in the end"); lost > 0 {
			return fmt.Sprintf("%d addresses are still held by nodes that are deleted", lost)
		}
		return ""
	})
}
