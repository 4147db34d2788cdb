package peer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
	"github.com/fairlead-cni/fairlead/test/e2e/install"
)

const (
	pods   = 60
	rounds = 3
)

// BenchmarkE2EPods measures the time until 60 new pods on two nodes are Ready, alternately with the reference bridge
// plugin; the time from the apply of Fairlead until its nodes are Ready; and the agent's memory with 60 pods on its
// node.
func BenchmarkE2EPods(b *testing.B) {
	bridge := cluster.Bare(b, bed.Options{Name: "peer-bridge", Nodes: 2})
	cluster.Must(b, bridge.BridgeCNI(b.Context()))
	bridge.AwaitReady(b)
	fairlead := cluster.Bare(b, bed.Options{Name: "peer-fairlead", Nodes: 2})
	b.ReportMetric(fairlead.Install(b, install.Bridge()...).Seconds(), "s-apply-to-Ready")
	b.ReportMetric(0, "ns/op") // not a measurement of this benchmark

	run(b, fairlead, nil) // the first round of each fills caches
	run(b, bridge, nil)
	var ours, theirs, ratios []float64
	for i := range rounds {
		mine, peer := 0.0, 0.0
		if i%2 == 0 {
			mine, peer = run(b, fairlead, nil), run(b, bridge, nil)
		} else {
			peer, mine = run(b, bridge, nil), run(b, fairlead, nil)
		}
		ours, theirs, ratios = append(ours, mine), append(theirs, peer), append(ratios, mine/peer)
		b.Logf("round %d: Fairlead %.1f s, bridge %.1f s, ratio %.2f", i+1, mine, peer, mine/peer)
	}
	for unit, values := range map[string][]float64{"s-Fairlead": ours, "s-bridge": theirs, "ratio": ratios} {
		slices.Sort(values)
		b.ReportMetric(values[rounds/2], unit)
	}
	run(b, fairlead, func() {
		rss := agentRSS(b, fairlead, "node1")
		b.ReportMetric(rss, "MiB-agent")
		b.Logf("the agent's memory with %d pods on its node: %.0f MiB", pods, rss)
	}, "node1")
}

// run creates pods, on the named nodes or spread over all, and returns the seconds until they were Ready. Then it calls
// atPeak, if it is not nil, and waits until they are gone.
func run(b *testing.B, c *cluster.Cluster, atPeak func(), on ...string) float64 {
	b.Helper()
	ctx, deployments := b.Context(), c.API.AppsV1().Deployments("default")
	begun := time.Now()
	_, err := deployments.Create(ctx, deployment(on), metav1.CreateOptions{})
	cluster.Must(b, err)
	cluster.Eventually(b, func() error {
		d, err := deployments.Get(ctx, "many", metav1.GetOptions{})
		if err == nil && d.Status.ReadyReplicas < pods {
			err = fmt.Errorf("%d of %d pods are ready", d.Status.ReadyReplicas, pods)
		}
		return err
	})
	took := time.Since(begun).Seconds()
	if atPeak != nil {
		atPeak()
	}
	foreground := metav1.DeletePropagationForeground
	cluster.Must(b, deployments.Delete(ctx, "many", metav1.DeleteOptions{PropagationPolicy: &foreground}))
	cluster.Eventually(b, func() error {
		_, err := deployments.Get(ctx, "many", metav1.GetOptions{})
		if apierrors.IsNotFound(err) { // its pods are gone before it is
			return nil
		}
		return errors.Join(err, errors.New("pods are left"))
	})
	return took
}

func deployment(on []string) *appsv1.Deployment {
	labels := map[string]string{"app": "many"}
	grace, count := int64(0), int32(pods)
	pod := corev1.PodSpec{TerminationGracePeriodSeconds: &grace,
		Containers: []corev1.Container{{Name: "c", Image: bed.TestImage, ImagePullPolicy: corev1.PullNever}}}
	if len(on) > 0 {
		pod.NodeSelector = map[string]string{corev1.LabelHostname: on[0]}
	}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "many"}, Spec: appsv1.DeploymentSpec{
		Replicas: &count, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod}}}
}

// agentRSS is the resident memory, in MiB, of the agent on a node (proc_pid_status(5)).
func agentRSS(b *testing.B, c *cluster.Cluster, node string) float64 {
	b.Helper()
	var rss float64
	cluster.Must(b, c.Host(node).Do(func() error {
		files, err := filepath.Glob("/proc/[0-9]*/status")
		if err != nil {
			return err
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil || !strings.HasPrefix(string(text), "Name:\tfairlead-agent\n") {
				continue
			}
			if m := regexp.MustCompile(`VmRSS:\s*(\d+) kB`).FindSubmatch(text); m != nil {
				kib, err := strconv.ParseFloat(string(m[1]), 64)
				rss = max(rss, kib/1024)
				if err != nil {
					return err
				}
			}
		}
		return nil
	}))
	if rss == 0 {
		b.Fatalf("no fairlead-agent runs on %s", node)
	}
	return rss
}
