package apply

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow/explain"
	"github.com/fairlead-cni/fairlead/test/flowtest"
)

// deniedNode has pods a, b and c. Packets that policies deny are logged if the pods' Namespace requests it.
type deniedNode struct {
	*node
	lines []string
}

const deniedPolicies = `---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: ns, labels: {app: a}}
spec: {nodeName: me, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: ns, labels: {app: b}}
spec: {nodeName: me, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Node
metadata: {name: far}
spec: {podCIDR: 10.77.2.0/24, podCIDRs: [10.77.2.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: out, namespace: ns}
spec: {podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{ports: [{port: 80}]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: in, namespace: ns}
spec: {podSelector: {matchLabels: {app: b}}, ingress: [{ports: [{port: 8080}]}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: lock}
spec:
  tier: Admin
  priority: 10
  subject: {namespaces: {}}
  egress: [{name: no-test-net, action: Deny, to: [{networks: [203.0.113.0/24]}]}]
`

func newDeniedNode(t *testing.T) *deniedNode {
	t.Helper()
	n := &deniedNode{node: newNode(t, api.AgentConfig{NetworkPolicies: api.PoliciesEnforce,
		PolicyLogDenied: api.PolicyLogAnnotated})}
	n.restart()
	n.logs(true)
	for i, name := range []string{"a", "b", "c"} {
		n.pod(name, byte(5+i))
	}
	n.apply(n.round())
	return n
}

// restart replaces the agent with a new one.
func (n *deniedNode) restart() {
	n.flows.Stop()
	var err error
	if n.source, err = inputs.NewDirectory(n.dir, logr.Discard()); err != nil {
		n.t.Fatal(err)
	}
	log := funcr.New(func(_, line string) {
		if strings.Contains(line, `"msg"="policies `) {
			n.lines = append(n.lines, line)
		}
		n.t.Log(line)
	}, funcr.Options{})
	n.flows = NewFlows(n.db, n.cfg, "me", n.source, &status.NewMetrics("test").Loop, log)
	n.t.Cleanup(n.flows.Stop)
}

func (n *deniedNode) logs(is bool) {
	n.t.Helper()
	n.has(fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: ns, annotations: {%s: %q}}\n",
		api.AnnotationLogDenied, strconv.FormatBool(is)) + deniedPolicies)
}

// send makes a pod, 0 for the first, send a TCP packet.
func (n *deniedNode) send(pod int, to string, from, port int) {
	p := n.pods[pod]
	n.Appctl("netdev-dummy/receive", p.HostIf, fmt.Sprintf("in_port(1),eth(src=%s,dst=02:00:00:00:00:99),eth_type(0x0800),"+
		"ipv4(src=%s,dst=%s,proto=6,tos=0,ttl=64,frag=no),tcp(src=%d,dst=%d),tcp_flags(syn)",
		p.MAC, p.Addrs[0].Addr(), to, from, port))
}

// delivered is the number of packets that have left the switch through any port.
func (n *deniedNode) delivered() (all int) {
	for _, m := range regexp.MustCompile(`tx pkts=(\d+)`).FindAllStringSubmatch(n.Ofctl("dump-ports", "br-int"), -1) {
		sent, _ := strconv.Atoi(m[1])
		all += sent
	}
	return all
}

// waitLines waits until there is a line that contains all texts.
func (n *deniedNode) waitLines(texts ...string) {
	n.t.Helper()
	n.waitLinesSending(func() {}, texts...)
}

// waitLinesSending is waitLines with a packet that is sent repeatedly: the datapath may still drop some silently, as
// before a change.
func (n *deniedNode) waitLinesSending(send func(), texts ...string) {
	n.t.Helper()
	has := func(line string) bool {
		return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) })
	}
	var sent time.Time
	for start := time.Now(); !slices.ContainsFunc(n.lines, has); time.Sleep(time.Millisecond) {
		if time.Since(start) > time.Minute {
			n.t.Fatalf("no line has %q, but there are\n%s", texts, strings.Join(n.lines, "\n"))
		}
		if time.Since(sent) > 200*time.Millisecond {
			send()
			sent = time.Now()
		}
		n.flows.Due()
	}
}

// follow updates the switch only for changed objects.
func (n *deniedNode) follow() {
	n.t.Helper()
	if done, err := n.flows.SyncPolicies(n.soon()); !done || err != nil {
		n.t.Fatal(done, err)
	}
}

func (n *deniedNode) resync() {
	n.t.Helper()
	r := n.round()
	r.Verify, r.Settled = true, true
	n.apply(r)
}

// Each kind of denial has a log line with the pod, the packet and the policy; accepted packets have none.
func TestDeniedPacketsAreLogged(t *testing.T) {
	n := newDeniedNode(t)
	n.send(0, "10.77.1.7", 1000, 81)
	n.waitLines(`"pod"="ns/a" "direction"="egress" "peer"="pod ns/c" "address"="10.77.1.7" "protocol"="TCP" "port"=81`,
		`"reason"="isolated by NetworkPolicy ns/out, and no rule accepts it"`)
	n.send(2, "10.77.1.6", 1000, 22)
	n.waitLines(`"pod"="ns/b" "direction"="ingress" "peer"="pod ns/c" "address"="10.77.1.7" "protocol"="TCP" "port"=22`,
		`"reason"="isolated by NetworkPolicy ns/in, and no rule accepts it"`)
	n.send(2, "203.0.113.9", 1000, 443)
	n.waitLines(`"pod"="ns/c" "direction"="egress" "peer"="203.0.113.9" "address"="203.0.113.9" "protocol"="TCP" "port"=443`,
		`"reason"="egress[0] (no-test-net) of ClusterNetworkPolicy lock denies it, in tier Admin"`)
	n.send(0, "10.77.2.1", 1000, 82)
	n.waitLines(`"peer"="node far" "address"="10.77.2.1"`)
	if sent := n.delivered(); sent != 0 {
		t.Errorf("%d packets that policies deny were delivered", sent)
	}
	trace := n.Trace("br-int", fmt.Sprintf("in_port=%s,tcp,dl_src=%s,nw_src=10.77.1.7,nw_dst=10.77.1.6,nw_ttl=64,tp_dst=22",
		n.pods[2].HostIf, n.pods[2].MAC))
	if in := explain.DeniedIn(trace); !explain.Dropped(trace) || in != "IngressNetworkPolicy" {
		t.Errorf("a trace of what is denied and shown is taken for one that is denied in %q:\n%s", in, trace)
	}
	n.send(2, "10.77.1.6", 1000, 8080)
	n.send(0, "10.77.1.7", 1001, 81) // of the same kind as the first
	n.send(0, "10.77.1.7", 1002, 83)
	n.waitLines(`"port"=83`)
	if len(n.lines) != 5 {
		t.Errorf("%d lines, want 5:\n%s", len(n.lines), strings.Join(n.lines, "\n"))
	}
	if sent := n.delivered(); sent != 1 {
		t.Errorf("%d packets were delivered, want the one that is allowed", sent)
	}
	n.flows.logDenied(time.Now().Add(time.Minute))
	n.waitLines(`"msg"="policies keep denying packets" "pod"="ns/a" "direction"="egress"`, `"packets"=1`)
}

// A flood of denied packets, with ever-changing ports, causes few lines and sends few packets to the agent, and none is
// delivered.
func TestFloodOfDeniedPackets(t *testing.T) {
	n := newDeniedNode(t)
	start := time.Now()
	for i := range 3000 {
		n.send(0, "10.77.1.7", 1000+i, 1000+i)
	}
	n.flows.Due()
	// For the limits see openflow/denied and agent/denials; the meter has another clock.
	seconds := int(time.Since(start)/time.Second) + 2
	seen := int(n.flows.denied.tap.Seen())
	if seen < 30 || seen > 50+20*seconds {
		t.Errorf("of 3000 packets in %d s, %d came to the agent", seconds, seen)
	}
	if len(n.lines) > min(seen, 50+5*seconds) {
		t.Errorf("%d packets have made %d lines in %d s", seen, len(n.lines), seconds)
	}
	if sent := n.delivered(); sent != 0 {
		t.Errorf("%d packets that policies deny were delivered", sent)
	}
	n.flows.logDenied(time.Now().Add(time.Hour))
	m := &n.flows.metrics.Policies
	told := testutil.ToFloat64(m.Seen) - testutil.ToFloat64(m.LeftOut)
	if lines := len(n.lines); int(told) != lines && int(told) != lines-1 { // one line may be about unlogged packets
		t.Errorf("%v packets were seen, %v of these are counted as unlogged, and there are %d lines",
			testutil.ToFloat64(m.Seen), testutil.ToFloat64(m.LeftOut), lines)
	}
}

// Logging starts and stops with the annotation. Meanwhile no denied packet passes, and afterwards the flows are the
// same as before.
func TestAnnotationChangesNoVerdict(t *testing.T) {
	n := newDeniedNode(t)
	with := flowtest.Sorted(flowtest.Flows(n.OVS))
	n.logs(false)
	n.follow()
	without := flowtest.Sorted(flowtest.Flows(n.OVS))
	for _, text := range []string{"CONTROLLER", "table=34", "goto_table:34", "goto_table:35"} {
		if !strings.Contains(with, text) || strings.Contains(without, text) {
			t.Errorf("flows with %q: %t with the log, %t without", text, strings.Contains(with, text),
				strings.Contains(without, text))
		}
	}
	if n.flows.denied.tap != nil {
		t.Error("there is a connection for the log, and no pod logs")
	}
	stop, sent := make(chan struct{}), make(chan int)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				sent <- i
				return
			default:
				n.send(0, "10.77.1.7", 1000+i%1000, 81)
				n.send(2, "10.77.1.6", 1000+i%1000, 22)
				n.send(2, "203.0.113.9", 1000+i%1000, 443)
			}
		}
	}()
	for range 15 {
		n.logs(true)
		n.follow()
		n.logs(false)
		n.follow()
	}
	close(stop)
	if rounds, passed := <-sent, n.delivered(); rounds < 20 || passed != 0 {
		t.Errorf("of %d denied packets, %d were delivered while the annotation came and went", 3*rounds, passed)
	}
	if again := flowtest.Sorted(flowtest.Flows(n.OVS)); again != without {
		t.Errorf("flows after the annotation has gone:\n%s", flowtest.Diff(without, again))
	}
	n.logs(true)
	n.follow()
	if again := flowtest.Sorted(flowtest.Flows(n.OVS)); again != with {
		t.Errorf("flows after the annotation has come:\n%s", flowtest.Diff(with, again))
	}
}

// Logging continues after ovs-vswitchd and the agent were killed, after only the log's connection was lost, and after
// the limit was removed; without a limit there is no log.
func TestDeniedLogContinues(t *testing.T) {
	n := newDeniedNode(t)
	port := 1000
	logs := func() {
		t.Helper()
		port++
		n.waitLinesSending(func() { n.send(0, "10.77.1.7", 1000, port) }, fmt.Sprintf(`"port"=%d`, port))
	}
	limited := func() bool { return strings.Contains(n.Ofctl("dump-meters", "br-int"), "meter=controller") }
	logs()
	n.Vswitchd.Kill()
	n.Vswitchd.Start()
	n.flows.Stop()
	n.apply(n.round())
	logs()
	if !limited() {
		t.Error("no limit after the death of ovs-vswitchd")
	}
	n.restart()
	n.apply(n.round())
	logs()
	n.flows.denied.tap.Close()
	n.resync()
	logs()
	n.Ofctl("del-meter", "br-int", "meter=controller")
	n.resync()
	if logs(); !limited() {
		t.Error("the limit was not put back")
	}
	n.flows.denied.close()
	n.flows.bridge = "none" // which has no socket
	n.follow()
	n.logs(false)
	n.follow()
	n.logs(true)
	n.follow()
	n.expect("no limit", false, "CONTROLLER")
	n.expect("no limit", true, "reg9=")
	n.flows.bridge = "br-int"
	n.resync()
	logs()
}
