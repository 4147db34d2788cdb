package controller

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/nodecidr"
)

// BenchmarkNodeIPAM assigns podCIDRs of both families to 5,000 Nodes that already exist when the controller starts, and
// then to one more with another controller.
func BenchmarkNodeIPAM(b *testing.B) {
	const many = 5000
	c := newCluster(b)
	nodes := c.s.Admin().CoreV1().Nodes()
	cfg := ipam("10.128.0.0/10", "fd00:77::/48")
	for b.Loop() {
		b.StopTimer()
		var making sync.WaitGroup
		for part := range 10 {
			making.Go(func() {
				for i := part; i < many; i += 10 {
					n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node", i)}}
					if _, err := nodes.Create(b.Context(), n, metav1.CreateOptions{}); err != nil {
						b.Error(err)
					}
				}
			})
		}
		making.Wait()
		b.StartTimer()
		b.ReportMetric(c.untilAllHave(cfg, many).Seconds(), "s/all")
		b.StopTimer()
		more := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "more"}}
		_, err := nodes.Create(b.Context(), more, metav1.CreateOptions{})
		must(b, err)
		b.ReportMetric(c.untilAllHave(cfg, many+1).Seconds(), "s/start+1")
		all := metav1.ListOptions{}
		must(b, nodes.DeleteCollection(b.Context(), metav1.DeleteOptions{}, all))
		must(b, c.admin.Resource(api.ClaimResource).DeleteCollection(b.Context(), metav1.DeleteOptions{}, all))
		b.StartTimer()
	}
}

// untilAllHave runs a controller until many Nodes have podCIDRs, and returns how long that took. It prints the duration
// of a pass without work.
func (c *cluster) untilAllHave(cfg api.NodeIPAM, many int) time.Duration {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Minute)
	defer cancel()
	n, follow := c.nodeIPAM(cfg)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	start := time.Now()
	running.Go(func() { follow(ctx) })
	running.Go(func() { n.run(ctx) })
	for have := 0; have < many; time.Sleep(20 * time.Millisecond) {
		if ctx.Err() != nil {
			c.t.Fatalf("%d of %d Nodes have podCIDRs after %s", have, many, time.Since(start))
		}
		have = 0
		for _, one := range listOf[corev1.Node](n.world.nodes) {
			if len(one.Spec.PodCIDRs) > 0 {
				have++
			}
		}
	}
	took := time.Since(start)
	began := time.Now()
	plan, err := nodecidr.Make(n.facts())
	must(c.t, err)
	c.t.Logf("%d Nodes: %s; computing a plan with nothing to do takes %s (%d gifts)", many, took, time.Since(began),
		len(plan.Assignments))
	return took
}
