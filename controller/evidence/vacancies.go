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

// Found is what Look has found.
type Found struct {
	// Node is that of the name, nil for none.
	Node *corev1.Node
	// Vacant are podCIDRs that the Node of the UID has not, as it has others or is gone, and of which no Pod was seen for
	// the grace period that may have an address. Stayed are those whose Pods run on the machine of Node: see
	// reclaim.Stayed.
	Vacant, Stayed []netip.Prefix
}

// Look reads the Node of that name and its Pods, which Due has returned the UID of, and what is with its podCIDRs.
func (v *Vacancies) Look(ctx context.Context, name, uid string, podCIDRs []netip.Prefix) (found Found, err error) {
	l := v.looks[uid]
	l.at = time.Now()
	found.Node, err = getNode(ctx, v.Client, name)
	same := found.Node != nil && string(found.Node.UID) == uid
	if same {
		podCIDRs = others(found.Node, podCIDRs)
	}
	var pods []reclaim.Pod
	if err == nil {
		pods, err = ReadPods(ctx, v.Client, name)
	}
	if err != nil { // there may have been one
		clear(l.since)
		return Found{}, err
	}
	node := Node(found.Node)
	found.Vacant = l.vacant(node, pods, podCIDRs, v.Grace)
	for _, p := range podCIDRs {
		if !same && found.Node != nil && reclaim.Occupied(p, node, pods) &&
			reclaim.Stayed(p, node, Addresses(found.Node), pods) {
			found.Stayed = append(found.Stayed, p)
		}
	}
	return found, nil
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
			since = l.at
		}
		l.since[p] = since
		if l.at.Sub(since) >= grace {
			out = append(out, p)
		}
	}
	return out
}
