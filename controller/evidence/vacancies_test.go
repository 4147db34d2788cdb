package evidence

import (
	"net/netip"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/ipam/reclaim"
)

// If the API server takes an hour to answer the first check, a check shortly after it would miss a Pod that was created
// meanwhile: the grace period starts with the answer.
func TestGraceStartsWithTheAnswer(t *testing.T) {
	const grace = 10 * time.Minute
	podCIDRs := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	l := &nodeCheck{at: time.Now().Add(-time.Hour), since: map[netip.Prefix]time.Time{}}
	for _, began := range []time.Time{l.at, time.Now(), time.Now().Add(grace / 2)} {
		l.at = began
		if got := l.vacant(reclaim.ClusterNode{}, nil, podCIDRs, grace); len(got) > 0 {
			t.Errorf("%v is vacant by a look that began %v after now", got, time.Until(began).Round(time.Minute))
		}
	}
	l.at = time.Now().Add(grace + time.Second)
	if got := l.vacant(reclaim.ClusterNode{}, nil, podCIDRs, grace); len(got) != 1 {
		t.Errorf("%v is vacant after the grace period, want %v", got, podCIDRs)
	}
}

// Observations from before an unanswered check no longer count: there may have been a Pod since.
func TestGraceStartsAgainAfterNoAnswer(t *testing.T) {
	p := netip.MustParsePrefix("10.244.1.0/24")
	v := Vacancies{Client: kubernetes.NewForConfigOrDie(&rest.Config{Host: "http://127.0.0.1:1"}), // closed port
		Grace: time.Minute, checks: map[string]*nodeCheck{"u": {since: map[netip.Prefix]time.Time{p: time.Now()}}}}
	got, err := v.Check(t.Context(), "n", "u", []netip.Prefix{p})
	if err == nil || len(got) > 0 || len(v.checks["u"].since) > 0 {
		t.Errorf("%v is vacant, %v, and counts are %v", got, err, v.checks["u"].since)
	}
}
