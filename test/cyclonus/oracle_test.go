// Package cyclonus compares Fairlead's verdicts for NetworkPolicies with those of cyclonus' matcher.
package cyclonus

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
	"github.com/fairlead-cni/fairlead/test/policytest"
)

// Cyclonus supports neither NetworkPolicies without policyTypes, nor unknown fields, nor protocols without ports, and
// its NotIn requires the label to exist (the API's does not): the worlds here are plain.
func TestOracle(t *testing.T) {
	judged := [2]int{}
	policytest.Cases(t, 10000, func(t *testing.T, seed uint64) error {
		r := policytest.New(seed, true)
		w := r.World()
		c := compile.New()
		w.Load(r, c)
		flows := policytest.Flows{}
		if err := flows.Apply(c.Changes()); err != nil {
			return err
		}
		theirs := matcher.BuildNetworkPolicies(r.IntN(2) == 0, w.Policies)
		for range 20 {
			packet := r.Connection(w)
			for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
				about, ok := w.About(packet, d)
				if !ok {
					continue
				}
				want := policy.Deny
				if theirs.IsIngressOrEgressAllowed(traffic(w, packet), d == policy.Ingress).IsAllowed() {
					want = policy.Accept
				}
				judged[2-want]++
				got, _ := c.Judge(about)
				installed, err := flows.Judge(about)
				if got.Verdict != want || installed != want || err != nil {
					return fmt.Errorf("%s of %+v: cyclonus says %v, Judge %+v, the flows %v, %v", d, packet, want, got,
						installed, err)
				}
			}
		}
		return nil
	})
	t.Logf("denied %d, accepted %d", judged[0], judged[1])
}

// traffic is a connection as cyclonus knows it.
func traffic(w policytest.World, c policytest.Connection) *matcher.Traffic {
	t := &matcher.Traffic{Source: peer(w, c.From), Destination: peer(w, c.To), ResolvedPort: int(c.Port),
		Protocol: c.Protocol}
	if p := w.PodAt(c.To); p != nil {
		for _, port := range p.Spec.Containers[0].Ports {
			if port.ContainerPort == c.Port && port.Protocol == c.Protocol {
				t.ResolvedPortName = port.Name
			}
		}
	}
	return t
}

func peer(w policytest.World, a netip.Addr) *matcher.TrafficPeer {
	p := &matcher.TrafficPeer{IP: a.String()}
	if pod := w.PodAt(a); pod != nil {
		i := slices.IndexFunc(w.Namespaces, func(n *corev1.Namespace) bool { return n.Name == pod.Namespace })
		p.Internal = &matcher.InternalPeer{PodLabels: pod.Labels, NamespaceLabels: w.Namespaces[i].Labels,
			Namespace: pod.Namespace}
	}
	return p
}
