// Package cluster provides a test with a cluster of real nodes that run Fairlead. The cluster is created for the test
// and removed with it, and its state is logged when the test fails.
package cluster

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/e2e/install"
)

// Patience is the time limit for a condition to become true on a busy machine, or in User-Mode Linux.
const Patience = 5 * time.Minute

// Cluster is a bed with Fairlead in it.
type Cluster struct {
	*bed.Bed
	// API is a client of the Kubernetes API with the administrator's rights.
	API *kubernetes.Clientset
}

// Start creates the bed, installs Fairlead with values of its chart, and waits until all nodes are Ready.
func Start(t testing.TB, o bed.Options, values ...string) *Cluster {
	t.Helper()
	c := Bare(t, o)
	c.Install(t, values...)
	return c
}

// Bare creates the bed, whose nodes have Fairlead's image and no network.
func Bare(t testing.TB, o bed.Options) *Cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a real cluster needs root")
	}
	archive, err := install.Image()
	Must(t, err)
	begun := time.Now()
	o.Replace, o.Images = true, append([]string{archive}, o.Images...)
	o.Progress = func(step string) { t.Logf("[%5.1f s] %s", time.Since(begun).Seconds(), step) }
	b, err := bed.Up(t.Context(), o)
	Must(t, err)
	c := &Cluster{Bed: b}
	t.Cleanup(func() {
		if t.Failed() {
			c.logState(t)
		}
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := b.Down(ctx); err != nil {
			t.Error(err)
		}
	})
	c.API, err = b.Client()
	Must(t, err)
	return c
}

// Install applies Fairlead's objects and waits until all nodes are Ready. It returns how long that took.
func (c *Cluster) Install(t testing.TB, values ...string) time.Duration {
	t.Helper()
	begun := time.Now()
	Must(t, install.Apply(t.Context(), c.Bed, values...))
	c.AwaitReady(t)
	took := time.Since(begun)
	t.Logf("from apply to %d nodes Ready: %.1f s", len(c.Nodes()), took.Seconds())
	return took
}

// AwaitReady waits until all nodes are Ready.
func (c *Cluster) AwaitReady(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	Must(t, c.WaitReady(ctx))
}

// logState logs the state of a failed cluster.
func (c *Cluster) logState(t testing.TB) {
	const named = "app.kubernetes.io/name="
	for _, args := range [][]string{
		{"get", "nodes,pods", "-A", "-o", "wide"},
		{"get", "events", "-A", "--field-selector=type=Warning"},
		{"logs", "-n", "kube-system", "-l", named + "fairlead-agent", "--tail=40", "--prefix"},
		{"logs", "-n", "kube-system", "-l", named + "fairlead-controller", "--tail=20", "--prefix"},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		out, err := c.Kubectl(ctx, args...)
		cancel()
		t.Logf("%v, %v\n%s", args, err, out)
	}
}

// Must fails the test if err is not nil.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Eventually repeats f until it returns nil, and fails the test with its last error after Patience.
func Eventually(t testing.TB, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	Must(t, Await(ctx, f))
}

// Await repeats f until it returns nil, or ctx ends.
func Await(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}
