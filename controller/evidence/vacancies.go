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

// Vacancies knows which podCIDRs of Nodes that are gone, or have others, have no pods any more.
type Vacancies struct {
	Client kubernetes.Interface
	// Grace is for how long no Pod must have been seen.
	Grace time.Duration

	looks map[string]*look // by the UID of the Node that had the podCIDRs
}

// look is the last one at a Node and its Pods.
type look struct {
	at time.Time
	// since is since when no Pod was seen that may have an address of a podCIDR.
	since map[netip.Prefix]time.Time
}

// Reset forgets all.
func (v *Vacancies) Reset() { v.looks = map[string]*look{} }

// Due returns which of these Nodes to look at now, by their UIDs, at most so many, those looked at longest ago first. A
// Node is looked at three times in the grace period. All others are forgotten.
func (v *Vacancies) Due(uids []string, most int) []string {
	before := v.looks
	v.Reset()
	var due []string
	for _, uid := range uids {
		l := before[uid]
		if l == nil {
			l = &look{since: map[netip.Prefix]time.Time{}}
		}
		if v.looks[uid] == nil && time.Since(l.at) >= v.Grace/3 {
			due = append(due, uid)
		}
		v.looks[uid] = l
	}
	slices.SortStableFunc(due, func(a, b string) int {
		return cmp.Or(v.looks[a].at.Compare(v.looks[b].at), cmp.Compare(a, b))
	})
	return due[:min(len(due), most)]
}

// Look reads the Node of that name, and its Pods unless it is the one with that UID, which Due has returned. It returns
// those of its podCIDRs that it has no more: a Node of that UID has others; or there is none, and for the grace period
// no Pod was seen that may have an address of it.
func (v *Vacancies) Look(ctx context.Context, name, uid string, podCIDRs []netip.Prefix) ([]netip.Prefix, error) {
	l := v.looks[uid]
	l.at = time.Now()
	node, err := getNode(ctx, v.Client, name)
	if err == nil && node != nil && string(node.UID) == uid {
		clear(l.since)
		return others(node, podCIDRs), nil
	}
	var pods []reclaim.Pod
	if err == nil {
		pods, err = ReadPods(ctx, v.Client, name)
	}
	if err != nil { // there may have been one
		clear(l.since)
		return nil, err
	}
	return l.vacant(Node(node), pods, podCIDRs, v.Grace), nil
}

// others are those that the Node has not, if it has any.
func others(node *corev1.Node, podCIDRs []netip.Prefix) (out []netip.Prefix) {
	for _, p := range podCIDRs {
		if len(node.Spec.PodCIDRs) > 0 && !slices.Contains(node.Spec.PodCIDRs, p.String()) {
			out = append(out, p)
		}
	}
	return out
}

func (l *look) vacant(there reclaim.ClusterNode, pods []reclaim.Pod, podCIDRs []netip.Prefix, grace time.Duration) (
	out []netip.Prefix) {
	before := maps.Clone(l.since)
	clear(l.since)
	for _, p := range podCIDRs {
		if reclaim.Occupied(p, there, pods) {
			continue
		}
		since, vacant := before[p]
		if !vacant {
			since = time.Now() // not since the look began: reading may have taken long
		}
		l.since[p] = since
		if l.at.Sub(since) >= grace {
			out = append(out, p)
		}
	}
	return out
}
