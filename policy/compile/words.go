package compile

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairlead-cni/fairlead/policy"
)

// Reason says what decided.
func (d Decision) Reason() string {
	switch {
	case d.Closed:
		return "denied, as its Namespace is unknown"
	case d.Rule != nil && d.Verdict == policy.Accept:
		return d.Rule.String() + " accepts it"
	case d.Rule != nil:
		return d.Rule.String() + " denies it"
	case d.Verdict == policy.Accept:
		return "no policy isolates the pod, and no rule matches the connection: accepted"
	}
	names := make([]string, 0, len(d.IsolatedBy))
	for _, ref := range d.IsolatedBy {
		names = append(names, ref.String())
	}
	return fmt.Sprintf("isolated by %s, and no rule accepts it", strings.Join(names, ", "))
}

// String names a rule by its place in the object.
func (r RuleRef) String() string {
	name := fmt.Sprintf("%s[%d]", r.Direction, r.Index)
	if r.Name != "" {
		name += " (" + r.Name + ")"
	}
	return fmt.Sprintf("%s of %s", name, r.Policy)
}

// Owner names the pod or node that has an address; empty if none is known.
func (c *Compiler) Owner(a netip.Addr) string {
	at := c.addrs[a]
	switch {
	case at == nil:
		return ""
	case at.pod != nil:
		return "pod " + at.pod.String()
	case len(at.nodes()) > 0:
		return "node " + at.nodes()[0]
	}
	return "" // it is in a network of a rule
}
