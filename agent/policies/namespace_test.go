package policies

import (
	"testing"

	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// A namespace has its labels from the API. One that is missing in a complete source, such as a directory of manifests,
// has the label that every namespace has; otherwise nothing is known about it, and it is no peer.
func TestNamespaceOfAPod(t *testing.T) {
	from := func(label string) string {
		return `{"podSelector": {"matchLabels": {"app": "judged"}}, "ingress": [{"from": [{"podSelector": {},
			"namespaceSelector": {"matchLabels": {` + label + `}}}]}]}`
	}
	for what, c := range map[string]struct {
		complete  bool
		namespace string // of the other pod
		label     string
		want      policy.Verdict
	}{
		"labels":                {false, "shop", `"team": "shop"`, policy.Accept},
		"labels of a directory": {true, "shop", `"team": "shop"`, policy.Accept},
		"not in the directory":  {true, "unseen", `"kubernetes.io/metadata.name": "unseen"`, policy.Accept},
		"not in the API":        {false, "unseen", `"kubernetes.io/metadata.name": "unseen"`, policy.Deny},
	} {
		w := newWorld(t, networkPolicy(t, "from", from(c.label)))
		w.source.Complete = c.complete
		to, other := w.place.Ports[0], &w.place.Ports[1]
		other.Pod.Namespace = c.namespace
		w.source.Put(feed.Pod, other.Pod.String(), &policy.Pod{PodKey: other.Pod, Addrs: other.At.Addrs, Local: true})
		w.update()
		d, ok := w.compiler.Judge(compile.Connection{Direction: policy.Ingress, Pod: to.Pod, Peer: other.At.Addrs[0],
			Protocol: policy.TCP, Port: 80})
		if !ok || d.Verdict != c.want {
			t.Errorf("%s: %+v, want %v", what, d, c.want)
		}
	}
}
