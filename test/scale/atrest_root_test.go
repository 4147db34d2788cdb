package scale

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-cni/fairlead/test/bench/report"
)

// The cluster at rest: a tenth of 100,000 Pods, as no agent receives the Pods of namespaces that it does not read. A
// namespace has podsEach Pods, and this node one Pod in each of ownNamespaces: the average number of Pods per node.
const (
	restNamespaces = 100
	ownNamespaces  = 20
	// podEvery is the interval of writes to a Pod: seven from its creation to its deletion a day later.
	podEvery = 24 * time.Hour / 7
	// podBytes is the length of an annotation that brings a Pod to the usual size of 4 to 6 kB.
	podBytes = 4000
)

// BenchmarkRootPoliciesAtRest measures the traffic between an agent and the API server at rest, alternately without
// policies and with policies that name their own namespace. Each of 5,000 Nodes has a heartbeat every five minutes.
func BenchmarkRootPoliciesAtRest(b *testing.B) {
	const rounds, settles, period = 2, 20 * time.Second, 2 * time.Minute
	x := policiesBedOf(b)
	for b.Loop() {
		x.peers(largePeers)
		x.start()
		x.restingPods()
		var with, without []float64
		for range rounds {
			x.atRest(settles)
			flows := x.flows()
			without = append(without, x.atRest(period))
			read := x.door.Received.Load()
			x.ownPolicies()
			x.atRest(settles)
			b.Logf("the Pods of %d namespaces: %.1f MB", ownNamespaces, float64(x.door.Received.Load()-read)/1e6)
			if more := x.flows() - flows; more < ownNamespaces*(podsEach-1) {
				b.Fatalf("%.0f flows more, with %d peers: the agent does not know the Pods\n%s", more,
					ownNamespaces*(podsEach-1), x.log())
			}
			with = append(with, x.atRest(period))
			for i := range restNamespaces {
				x.must(x.cluster.Client.NetworkingV1().NetworkPolicies(team(i)).Delete(b.Context(), "own", metav1.DeleteOptions{}))
			}
		}
		add(b, report.Result{Name: "policies that name their own namespace: traffic with the API server at rest", Unit: "kB/s",
			Ours: with, Peer: without, Against: "no policy", Target: report.AtMost(1.1),
			Note: fmt.Sprintf("%d Nodes; %d Pods in %d namespaces, each written every %s; the node has a Pod in %d of them", largePeers,
				restNamespaces*podsEach, restNamespaces, podEvery.Round(time.Minute), ownNamespaces)})
		x.stop()
	}
}

// restingPods creates namespaces with podsEach Pods each, one of them on this node in the first ownNamespaces.
func (x policiesBed) restingPods() {
	x.b.Helper()
	for i := range restNamespaces {
		x.namespace(team(i))
	}
	for i := range ownNamespaces {
		x.join(i, team(i), "own")
	}
	x.must(Together(x.b.Context(), restNamespaces*podsEach, func(ctx context.Context, i int) error {
		namespace, at := i%restNamespaces, i/restNamespaces
		p := Pod(i, NodeName(i/podsPerNode))
		p.Name, p.Annotations = restingPod(at), map[string]string{"example.com/config": strings.Repeat("x", podBytes)}
		p, err := x.cluster.Client.CoreV1().Pods(team(namespace)).Create(ctx, p, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		return x.runs(ctx, p, netip.AddrFrom4([4]byte{10, 128, byte(namespace), byte(2 + at)}))
	}))
}

func restingPod(i int) string { return fmt.Sprint("pod-", i) }

// ownPolicies isolates all Pods of each namespace: only Pods of the same one reach them.
func (x policiesBed) ownPolicies() {
	x.b.Helper()
	for i := range restNamespaces {
		_, err := x.cluster.Client.NetworkingV1().NetworkPolicies(team(i)).Create(x.b.Context(), &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "own"}, Spec: networkingv1.NetworkPolicySpec{
				Ingress: []networkingv1.NetworkPolicyIngressRule{{
					From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}}},
		}, metav1.CreateOptions{})
		x.must(err)
	}
}

// atRest keeps the cluster at rest, and returns the kB/s of the agent's traffic with the API server.
func (x policiesBed) atRest(how time.Duration) float64 {
	x.b.Helper()
	ctx, cancel := context.WithTimeout(x.b.Context(), how)
	defer cancel()
	x.door.Sent()
	before, began := x.door.Received.Load(), time.Now()
	go x.podsChange(ctx)
	x.cluster.Heartbeats(ctx, x.nodes)
	bytes := float64(x.door.Received.Load()-before) + float64(len(x.door.Sent()))
	return bytes / 1000 / time.Since(began).Seconds()
}

// podsChange writes each Pod every podEvery, evenly distributed over time and namespaces, until ctx ends.
func (x policiesBed) podsChange(ctx context.Context) {
	const pods = restNamespaces * podsEach
	tick := time.NewTicker(podEvery / pods)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case at := <-tick.C:
			patch := fmt.Appendf(nil, `{"metadata": {"annotations": {"example.com/written": %q}}}`, at)
			_, _ = x.cluster.Client.CoreV1().Pods(team(i%restNamespaces)).Patch(ctx, restingPod(i/restNamespaces%podsEach),
				types.MergePatchType, patch, metav1.PatchOptions{}) // a failed write is skipped
		}
	}
}
