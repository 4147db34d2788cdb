package evidence

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-cni/fairlead/ipam/reclaim"
)

// Vacancies finds podCIDRs of Nodes that are gone, or have others, which no longer have pods.
type Vacancies struct {
	Client kubernetes.Interface
	// Grace is how long no Pod must have been seen.
	Grace time.Duration

	checks map[string]*nodeCheck // by the UID of the Node that had the podCIDRs
}

// nodeCheck is the last check of a Node and its Pods.
type nodeCheck struct {
	at time.Time
	// since is when, by podCIDR, the time began in which no Pod that may have an address of it was seen.
	since map[netip.Prefix]time.Time
}

// Reset drops all checks.
func (v *Vacancies) Reset() { v.checks = map[string]*nodeCheck{} }

// Due returns which of these Nodes, by UID, to check now: at most the given number, those checked longest ago
// first. A Node is checked three times in the grace period. All others are dropped.
func (v *Vacancies) Due(uids []string, most int) []string {
	before := v.checks
	v.Reset()
	var due []string
	for _, uid := range uids {
		c := before[uid]
		if c == nil {
			c = &nodeCheck{since: map[netip.Prefix]time.Time{}}
		}
		if v.checks[uid] == nil && time.Since(c.at) >= v.Grace/3 {
			due = append(due, uid)
		}
		v.checks[uid] = c
	}
	slices.SortStableFunc(due, func(a, b string) int {
		return cmp.Or(v.checks[a].at.Compare(v.checks[b].at), cmp.Compare(a, b))
	})
	return due[:min(len(due), most)]
}

// Check reads the Node of that name, and its Pods unless the Node has that UID, which Due has returned. It returns the
// podCIDRs that are vacant: the Node of that UID has others; or it is gone, and for the grace period no Pod that may
// have an address of the podCIDR was seen.
func (v *Vacancies) Check(ctx context.Context, name, uid string, podCIDRs []netip.Prefix) ([]netip.Prefix, error) {
	c := v.checks[uid]
	c.at = time.Now()
	node, err := getNode(ctx, v.Client, name)
	if err == nil && node != nil && string(node.UID) == uid {
		clear(c.since)
		return others(node, podCIDRs), nil
	}
	var pods []reclaim.Pod
	if err == nil {
		pods, err = ReadPods(ctx, v.Client, name)
	}
	if err != nil { // there may have been one
		clear(c.since)
		return nil, err
	}
	return c.vacant(Node(node), pods, podCIDRs, v.Grace), nil
}

// others are the podCIDRs that the Node does not have, if it has any.
func others(node *corev1.Node, podCIDRs []netip.Prefix) (out []netip.Prefix) {
	for _, p := range podCIDRs {
		if len(node.Spec.PodCIDRs) > 0 && !slices.Contains(node.Spec.PodCIDRs, p.String()) {
			out = append(out, p)
		}
	}
	return out
}

func (c *nodeCheck) vacant(there reclaim.ClusterNode, pods []reclaim.Pod, podCIDRs []netip.Prefix,
	grace time.Duration) (out []netip.Prefix) {
	before := maps.Clone(c.since)
	clear(c.since)
	for _, p := range podCIDRs {
		if reclaim.Occupied(p, there, pods) {
			continue
		}
		since, vacant := before[p]
		if !vacant {
			since = time.Now() // not when the check began: reading may have taken long
		}
		c.since[p] = since
		if c.at.Sub(since) >= grace {
			out = append(out, p)
		}
	}
	return out
}
