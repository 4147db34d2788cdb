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

	looks map[string]*look // by the UID of the Node that had the podCIDRs
}

// look is the last look at a Node and its Pods.
type look struct {
	at time.Time
	// since is when, by podCIDR, the time began in which no Pod that may have an address of it was seen.
	since map[netip.Prefix]time.Time
}

// Reset drops all looks.
func (v *Vacancies) Reset() { v.looks = map[string]*look{} }

// Due returns which of these Nodes, by UID, to look at now: at most the given number, those looked at longest ago
// first. A Node is looked at three times in the grace period. All others are dropped.
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

// Look reads the Node of that name, and its Pods unless the Node has that UID, which Due has returned. It returns the
// podCIDRs that are vacant: the Node of that UID has others; or it is gone, and for the grace period no Pod that may
// have an address of the podCIDR was seen.
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

// others are the podCIDRs that the Node does not have, if it has any.
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
			since = time.Now() // not when the look began: reading may have taken long
		}
		l.since[p] = since
		if l.at.Sub(since) >= grace {
			out = append(out, p)
		}
	}
	return out
}
