package compile_test

import (
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// Policies that select no pod on any node are reported, and so are named ports that no pod has.
func TestIdle(t *testing.T) {
	c := compile.New()
	set := func(name, spec string) policy.Ref {
		p, err := policy.ParseNetworkPolicy([]byte(`{"metadata": {"namespace": "ns0", "name": "` + name + `"}, "spec": ` + spec + `}`))
		if err != nil {
			t.Fatal(err)
		}
		c.SetPolicy(p)
		return p.Ref
	}
	c.SetNamespace(policy.Namespace{Name: "ns0"})
	c.SetPod(new(podOf(0, 1, false))) // app1, with the port http
	c.SetPod(new(podOf(0, 2, true)))
	nothing := set("nothing", `{"podSelector": {"matchLabels": {"app": "app7"}}, "ingress": [{"ports": [{"port": "none"}]}]}`)
	port := set("port", `{"podSelector": {"matchLabels": {"app": "app1"}}, "ingress": [{"ports": [{"port": "htpp"}, {"port": "http"}]}]}`)
	udp := set("udp", `{"podSelector": {}, "egress": [{"ports": [{"port": "http", "protocol": "UDP"}]}]}`)
	set("fine", `{"podSelector": {"matchLabels": {"app": "app1"}}, "ingress": [{"ports": [{"port": "http"}]}]}`)
	set("empty", `{"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}`)
	everywhere, err := policy.ParseClusterNetworkPolicy([]byte(`{"metadata": {"name": "all"}, "spec": {"tier": "Admin",
		"priority": 1, "subject": {"namespaces": {}}, "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	c.SetPolicy(everywhere)
	want := map[policy.Ref][]policy.NamedPort{nothing: nil, port: {{Protocol: policy.TCP, Name: "htpp"}},
		udp: {{Protocol: policy.UDP, Name: "http"}}}
	got := c.Idle()
	for _, idle := range got {
		if ports, told := want[idle.Policy]; !told || !slices.Equal(ports, idle.Ports) {
			t.Errorf("%s is idle: %v", idle.Policy, idle.Ports)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%v are idle, want %v", got, want)
	}
	c.DeletePod(podOf(0, 1, false).PodKey)
	c.DeletePod(podOf(0, 2, true).PodKey)
	if got := c.Idle(); len(got) != 3 || slices.ContainsFunc(got, func(i compile.Idle) bool {
		return i.Policy == udp || i.Policy == everywhere.Ref || i.Policy.Name == "empty"
	}) {
		t.Errorf("without pods the policies %v are idle, want the 3 that select by labels", got)
	}
}
