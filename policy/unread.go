package policy

import (
	"encoding/json"
	"fmt"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// unread are the errors, by path, of rules that the types of this version cannot express: an alpha API changes the
// types of its fields. One such rule must not keep the others from being enforced.
type unread map[string]error

func rulePath(d Direction, i int) string { return fmt.Sprintf("spec.%s[%d]", d, i) }

// readRules returns a ClusterNetworkPolicy that cannot be decoded as a whole, without the undecodable rules: of these
// only name and action are left, if they are strings.
func readRules(doc []byte) ([]byte, unread, error) {
	var o map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(doc, &o); err != nil {
		return nil, nil, err
	}
	spec, _ := o["spec"].(map[string]any)
	out := unread{}
	for _, d := range []Direction{Ingress, Egress} {
		rules, _ := spec[d.String()].([]any)
		for i, r := range rules {
			if err := readRule(d, r); err != nil {
				out[rulePath(d, i)], rules[i] = err, heading(r)
			}
		}
	}
	doc, err := json.Marshal(o)
	return doc, out, err
}

func readRule(d Direction, r any) error {
	doc, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if d == Egress {
		return kjson.UnmarshalCaseSensitivePreserveInts(doc, new(v1alpha2.ClusterNetworkPolicyEgressRule))
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(doc, new(v1alpha2.ClusterNetworkPolicyIngressRule))
}

// heading returns the name and action of a rule.
func heading(r any) map[string]any {
	fields, _ := r.(map[string]any)
	out := map[string]any{}
	for _, key := range []string{"name", "action"} {
		if text, ok := fields[key].(string); ok {
			out[key] = text
		}
	}
	return out
}
