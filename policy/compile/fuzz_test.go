package compile_test

import (
	"testing"

	"github.com/fairlead-cni/fairlead/policy"
)

// Invalid policies are rejected, and valid ones compile to flows.
func FuzzPolicies(f *testing.F) {
	f.Add([]byte(`{"metadata": {"namespace": "ns0", "name": "a"}, "spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock":
		{"cidr": "10.0.0.0/8", "except": ["10.0.0.0/9", "::/0"]}}], "ports": [{"port": "http"}, {"port": 1, "endPort": 65535}]}]}}`))
	f.Add([]byte(`{"metadata": {"name": "a"}, "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
		"egress": [{"action": "Deny", "to": [{"networks": ["0.0.0.0/0", "::/0"]}, {"nodes": {}}], "protocols": [{"tcp": {}}]}]}}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		o := newOne(t)
		parsers := []func([]byte) (policy.Policy, error){policy.ParseNetworkPolicy, policy.ParseClusterNetworkPolicy}
		for _, parse := range parsers {
			p, err := parse(doc)
			if err != nil {
				continue
			}
			o.SetPolicy(p)
			o.ingress("10.0.0.1")
			o.ingress("fd00::1")
			o.DeletePolicy(p.Ref)
			o.ingress("10.0.0.1")
			if left := o.Flows(); len(left) > 0 {
				t.Errorf("the flows %+v are left", left)
			}
		}
	})
}
