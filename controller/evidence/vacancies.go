package evidence

import (
	"context"
	"net/netip"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-cni/fairlead/ipam/reclaim"
)

// Vacancies knows which podCIDRs of Nodes that are gone have no pods any more.
type Vacancies struct {
	Client kubernetes.Interface
	// Grace is for how long no Pod must have been seen.
	Grace time.Duration

	looks map[netip.Prefix]look
}

// look is the last one at the Pods of a Node that had a podCIDR, and since when none was seen that may have an address
// of it.
type look struct {
	uid       string
	at, since time.Time
}

// Reset forgets all.
func (v *Vacancies) Reset() { v.looks = map[netip.Prefix]look{} }

// Vacant reports whether no Pod was seen for the grace period that may have an address of a podCIDR, of a Node with
// that UID, which is gone. It looks three times in that.
func (v *Vacancies) Vacant(ctx context.Context, podCIDR netip.Prefix, node, uid string) (bool, error) {
	now, l := time.Now(), v.looks[podCIDR]
	if l.uid == uid && now.Sub(l.at) < v.Grace/3 {
		return false, nil
	}
	there, err := ReadNode(ctx, v.Client, node)
	var pods []reclaim.Pod
	if err == nil {
		pods, err = ReadPods(ctx, v.Client, node)
	}
	occupied := err != nil || reclaim.Occupied(podCIDR, there, pods)
	if l.uid != uid || occupied {
		l.since = now
	}
	v.looks[podCIDR] = look{uid, now, l.since}
	return !occupied && now.Sub(l.since) >= v.Grace, err
}
