package events

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
	"github.com/fairlead-cni/fairlead/test/e2e/matrix"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// busy is a cluster with pods of each kind.
type busy struct {
	*cluster.Cluster
	// victim is the node that events affect, other a node that exchanges traffic with it, third a node without traffic.
	victim, other, third string
	lost                 lost
	table                []matrix.Event
	// forbidden are paths that policies close: no packet may get through during any event.
	forbidden []matrix.Path
}

// pools are IPPools of both VLANs.
const pools = `
apiVersion: crd.antrea.io/v1beta1
kind: IPPool
metadata: {name: vlan10}
spec:
  ipRanges: [{start: 192.168.110.100, end: 192.168.110.199}]
  subnetInfo: {gateway: 192.168.110.1, prefixLength: 24, vlan: 10}
---
apiVersion: crd.antrea.io/v1beta1
kind: IPPool
metadata: {name: vlan20}
spec:
  ipRanges: [{start: 192.168.120.100, end: 192.168.120.199}]
  subnetInfo: {gateway: 192.168.120.1, prefixLength: 24, vlan: 20}
---
`

// onEachNode is a DaemonSet: %[1]s is its name, %[2]s are its pods' annotations.
const onEachNode = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}, annotations: {%[2]s}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: "` + bed.TestImage + `", imagePullPolicy: Never, args: [serve]}]
---
`

// policies isolate the pods of a for egress and the pod of b on the victim for ingress: all traffic of paths is
// allowed.
const policies = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-a}
spec:
  podSelector: {matchLabels: {app: a}}
  policyTypes: [Egress]
  egress: [{to: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [a, b]}]}}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: to-b}
spec:
  podSelector: {matchLabels: {isolated: "true"}}
  ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [a, b]}]}}]}]
`

// workload is two routed pods on each node, and one in each VLAN.
func workload() string {
	return pools + fmt.Sprintf(onEachNode, "a", "") + fmt.Sprintf(onEachNode, "b", "") +
		fmt.Sprintf(onEachNode, "v10", "ipam.antrea.io/ippools: vlan10") +
		fmt.Sprintf(onEachNode, "v20", "ipam.antrea.io/ippools: vlan20")
}

// run starts the pods of each kind and waits until all run.
func (c *busy) run(t *testing.T) {
	t.Helper()
	c.Apply(t, []byte(workload()))
	for _, set := range []string{"a", "b", "v10", "v20"} {
		c.Running(t, set, len(c.Nodes()))
	}
}

// police isolates pods, and waits until no packet gets through on the forbidden paths, which were all open before.
func (c *busy) police(ctx context.Context, t *testing.T) {
	t.Helper()
	pod := func(set, node string, family int) matrix.Place { return c.pod(ctx, t, set, node, family) }
	c.forbidden = []matrix.Path{
		{From: pod("v10", c.victim, v4), To: pod("b", c.victim, v4)},
		{From: pod("v20", c.other, v4), To: pod("b", c.victim, v4)},
		{From: pod("a", c.victim, v4), To: pod("v10", c.victim, v4)},
		{From: pod("a", c.other, v4), To: pod("v20", c.victim, v4)},
	}
	f, err := matrix.StartForbidden(c.forbidden)
	cluster.Must(t, err)
	cluster.Must(t, f.Arrive(true, backWithin))
	c.Run(t, "label", "pod", "-l", "app=b", "--field-selector", "spec.nodeName="+c.victim, "isolated=true")
	c.Apply(t, []byte(policies))
	cluster.Must(t, f.Arrive(false, backWithin))
	f.Forget()
	cluster.Must(t, f.Stop())
}

// host is a host of the bed, with its address of a family.
func (c *busy) host(t *testing.T, name string, addrs []netip.Prefix, family int) matrix.Place {
	t.Helper()
	place := c.HostPlace(t, name, addrs[family])
	place.Name += families[family]
	return place
}

// Families of addresses, in the order in which hosts and pods have them.
const v4, v6 = 0, 1

var families = [...]string{"", " (IPv6)"}

// hostPaths are paths from hosts to hosts, and the control.
func (c *busy) hostPaths(t *testing.T) (paths []matrix.Path) {
	t.Helper()
	node := func(name string, family int) matrix.Place {
		return c.host(t, name, c.Underlay().NodeAddrs(slices.Index(c.Nodes(), name)+1), family)
	}
	plane := func(family int) matrix.Place {
		return c.host(t, underlay.ControlPlane, underlay.Dual.ControlPlaneAddrs(), family)
	}
	outside := func(family int) matrix.Place { return c.host(t, underlay.Outside, underlay.Dual.FarAddrs(), family) }
	return []matrix.Path{
		{Kind: ofHost, From: node(c.victim, v4), To: node(c.other, v4)},
		{Kind: ofHost, From: node(c.other, v6), To: node(c.victim, v6)},
		{Kind: ofHost, From: plane(v4), To: node(c.victim, v4)},
		{Kind: ofHost, From: outside(v6), To: node(c.victim, v6)},
		{Kind: ofControl, From: outside(v4), To: plane(v4)},
		{Kind: ofControl, From: plane(v6), To: outside(v6)},
	}
}

// paths are hostPaths, and paths from pods to pods, on one node and between nodes, routed and bridged.
func (c *busy) paths(ctx context.Context, t *testing.T) []matrix.Path {
	t.Helper()
	pod := func(set, node string, family int) matrix.Place { return c.pod(ctx, t, set, node, family) }
	outside := c.host(t, underlay.Outside, underlay.Dual.FarAddrs(), v4)
	return append(c.hostPaths(t),
		matrix.Path{Kind: ofPods, From: pod("a", c.victim, v4), To: pod("b", c.victim, v4)},
		matrix.Path{Kind: ofPods, From: pod("b", c.victim, v6), To: pod("a", c.victim, v6)},
		matrix.Path{Kind: ofPods, From: pod("a", c.victim, v4), To: pod("a", c.other, v4)},
		matrix.Path{Kind: ofPods, From: pod("b", c.other, v6), To: pod("b", c.victim, v6)},
		matrix.Path{Kind: ofPods, From: pod("v10", c.victim, v4), To: pod("v10", c.other, v4)},
		matrix.Path{Kind: ofPods, From: outside, To: pod("v20", c.victim, v4)},
		matrix.Path{Kind: ofPods, From: pod("v20", c.victim, v4), To: pod("a", c.other, v4)},
	)
}

// pod is the pod of a DaemonSet on a node, with its address of a family.
func (c *busy) pod(ctx context.Context, t *testing.T, set, node string, family int) matrix.Place {
	t.Helper()
	pods, err := c.API.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	cluster.Must(t, err)
	i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool {
		return metav1.GetControllerOf(&p).Name == set && len(p.Status.PodIPs) > family
	})
	if i < 0 {
		t.Fatalf("%s has no pod of DaemonSet %s", node, set)
	}
	place := c.PodPlace(t, pods.Items[i], family)
	place.Name = set + " on " + node + families[family]
	return place
}
