package compile_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// numbers is more than a rule can have for a named port.
const numbers = compile.MaxClauses + compile.MaxClauses/10

var web = policy.NamedPort{Name: "web"}

// webAt is port web with this number.
func webAt(number int) policy.PodPort {
	return policy.PodPort{NamedPort: policy.NamedPort{Protocol: policy.TCP, Name: "web"}, Number: uint16(number)}
}

// webPod is the i-th peer, with these ports.
func webPod(i int, ports ...policy.PodPort) policy.Pod {
	return policy.Pod{PodKey: policy.PodKey{Namespace: name(0), Name: fmt.Sprint("web", i)}, Ports: ports,
		Labels: map[string]string{"web": fmt.Sprint(i)}, Addrs: []netip.Addr{webAddr(i)}}
}

func webAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 200, byte(i / 256), byte(i)}) }

// admin is a policy of tier Admin for all pods.
func admin(name string, priority int, d policy.Direction, rules ...policy.Rule) policy.Policy {
	for i := range rules {
		rules[i].Index = i
	}
	p := policy.Policy{Ref: policy.Ref{Kind: "ClusterNetworkPolicy", Name: name}, Tier: policy.Admin, Priority: priority,
		Subject: policy.AllPods()}
	p.Rules[d] = rules
	return p
}

// before puts this many rules of egress and ingress before all others.
func (o one) before(n int) {
	last := policy.Rule{Index: n - 1, Verdict: policy.Accept, AnyPeer: true, AnyPort: true}
	o.SetPolicy(policy.Policy{Ref: policy.Ref{Kind: "ClusterNetworkPolicy", Name: "before"}, Tier: policy.Admin,
		Subject: policy.Subjects{Namespace: "another"}, Rules: [2][]policy.Rule{{last}, {last}}})
}

// opened returns how many of the connections are accepted, by both Judge and the flows.
func (o one) opened(asked []compile.Connection) (n int) {
	o.t.Helper()
	if err := o.flows.Apply(o.Changes()); err != nil {
		o.t.Fatal(err)
	}
	for _, about := range asked {
		d, ok := o.Judge(about)
		v, err := o.flows.Judge(about)
		if err != nil || !ok || d.Verdict == policy.Deny && v == policy.Accept {
			o.t.Fatalf("%+v: Judge says %v, %v, the flows %v, %v", about, d.Verdict, ok, v, err)
		}
		if v == policy.Accept {
			n++
		}
	}
	return n
}

func toWeb(d policy.Direction, peer netip.Addr, port int) compile.Connection {
	return compile.Connection{Direction: d, Pod: podOf(0, 0, true).PodKey, Peer: peer, Protocol: policy.TCP,
		Port: uint16(port)}
}

// If a named port has more numbers than fit, nothing is open that would be closed if they did: rules that deny or pass
// deny all ports of the pods that have the named port. Rules that accept do not accept all of it.
func TestTooManyNumbers(t *testing.T) {
	everything := policy.Rule{AnyPeer: true, AnyPort: true}
	for _, test := range []struct {
		rule, after policy.Verdict
		problem     string
	}{
		{policy.Deny, policy.Accept, "[0] of ClusterNetworkPolicy a denies all ports of pods that have port web, as it has " +
			"more than 4000 numbers"},
		{policy.Pass, policy.Accept, "[0] of ClusterNetworkPolicy a passes nothing, and denies all ports of pods that have " +
			"port web, as it has more than 4000 numbers"},
		{policy.Accept, policy.Deny, "the others accept nothing"},
	} {
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			if test.rule == policy.Accept && d == policy.Egress {
				continue // 4,400 sets for each of 4,400 peers, which takes seconds
			}
			o := newOne(t)
			mine := podOf(0, 0, true)
			mine.Ports = nil
			var asked []compile.Connection
			for i := range numbers {
				to, number := webPod(i, webAt(10000+i)), webAt(10000+i)
				if d == policy.Ingress {
					to.Ports, mine.Ports = nil, append(mine.Ports, number)
				}
				if i%100 == 0 || d == policy.Egress {
					o.SetPod(to)
				}
				if i%100 == 0 {
					asked = append(asked, toWeb(d, webAddr(i), 10000+i))
				}
			}
			o.SetPod(mine)
			isolate := ingress("isolate", "")
			isolate.Isolates[policy.Egress] = true
			o.SetPolicy(isolate)
			rule := policy.Rule{Verdict: test.rule, Pods: []policy.Subjects{policy.AllPods()},
				NamedPorts: []policy.NamedPort{web}}
			everything.Verdict = test.after
			o.SetPolicy(admin("a", 1, d, rule, everything))
			n := o.opened(asked)
			if test.rule != policy.Accept && n > 0 || test.rule == policy.Accept && n == 0 {
				t.Errorf("%v, %s: %d of %d connections are open", test.rule, d, n, len(asked))
			}
			if got := strings.Join(o.Problems(), "\n"); !strings.Contains(got, test.problem) {
				t.Errorf("%v, %s: the problems are %q", test.rule, d, got)
			}
			elsewhere := []compile.Connection{toWeb(d, netip.MustParseAddr("192.0.2.1"), 80)}
			if n := o.opened(elsewhere); d == policy.Egress && (n == 1) != (test.after == policy.Accept) {
				t.Errorf("%v, %s: without a port web, %d are open", test.rule, d, n)
			}
		}
	}
}

// No rank has more rules than a flow can have clauses, whatever port numbers they name.
func TestLateRulesWithNames(t *testing.T) {
	o := newOne(t)
	o.before(compile.Ordered)
	var rules []policy.Rule
	var asked []compile.Connection
	var pods [100]policy.Pod
	for i := range compile.MaxClauses / 2 {
		to, first := i%len(pods), 10000+i
		port := policy.NamedPort{Protocol: policy.TCP, Name: fmt.Sprint("web", i)}
		for n := range 3 {
			pods[to] = webPod(to, append(pods[to].Ports, policy.PodPort{NamedPort: port, Number: uint16(first + n)})...)
		}
		rules = append(rules, policy.Rule{Verdict: policy.Deny, Pods: []policy.Subjects{policy.AllPods()},
			Ports:      []policy.PortRange{{Protocol: policy.UDP, First: 53, Last: 53}},
			NamedPorts: []policy.NamedPort{{Name: port.Name}}})
		if i%50 == 0 {
			asked = append(asked, toWeb(policy.Egress, webAddr(to), first+i%3))
		}
	}
	for _, p := range pods {
		o.SetPod(p)
	}
	o.SetPolicy(admin("a", 1, policy.Egress, rules...))
	if n := o.opened(asked); n > 0 {
		t.Errorf("%d of %d connections are open", n, len(asked))
	}
	want := "egress[7] of ClusterNetworkPolicy a denies all ports of pods that have port web7, as more than 16000 rules come " +
		"before it"
	if got := o.Problems(); !slices.Contains(got, want) || len(got) != len(rules) {
		t.Errorf("%d problems: %.500q", len(got), got)
	}
	o.before(1)
	if n := o.opened(asked[:1]); n > 0 || len(o.Problems()) > 0 {
		t.Errorf("in order: %d connections are open, and the problems are %.500q", n, o.Problems())
	}
}

// Deny rules after the last rank deny everything for all of their pods: there is no other place for them.
func TestRulesBeyondRanks(t *testing.T) {
	o := newOne(t)
	var rules []policy.Rule
	var asked []compile.Connection
	for i := range numbers {
		rules = append(rules, policy.Rule{Verdict: policy.Deny, AnyPeer: true,
			Ports: []policy.PortRange{{Protocol: policy.TCP, First: uint16(i + 1), Last: uint16(i + 1)}}})
		if i%100 == 0 {
			asked = append(asked, toWeb(policy.Ingress, webAddr(1), i+1))
		}
	}
	o.SetPolicy(admin("a", 1, policy.Ingress, rules...))
	o.before(compile.Ordered + (compile.Ranks-compile.Ordered)*compile.MaxClauses/2 - 1)
	if n := o.opened(asked); n > 0 {
		t.Errorf("%d of %d connections are open", n, len(asked))
	}
	want := fmt.Sprintf("ClusterNetworkPolicy a: %d rules deny everything, as more than 516000 rules of the same tier and "+
		"direction come before them", len(rules)-1)
	if got := o.Problems(); !slices.Contains(got, want) {
		t.Errorf("the problems are %.500q", got)
	}
	o.SetPolicy(admin("a", 1, policy.Ingress, policy.Rule{Verdict: policy.Accept, AnyPeer: true, AnyPort: true}))
	if n := o.opened(asked); n != len(asked) || len(o.Problems()) != 1 {
		t.Errorf("a rule that accepts, and has no place: %d of %d are open, %q", n, len(asked), o.Problems())
	}
}
