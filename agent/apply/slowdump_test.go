package apply

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/go-logr/logr/testr"

	"github.com/fairlead-cni/fairlead/agent/policies"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
)

// control is a control socket of n's ovs-vswitchd that lists connections with a delay, as one with many connections
// does.
type control struct {
	n     *node
	dir   string // its run directory
	after time.Duration
	lists atomic.Int32
	hold  chan struct{} // unless nil, no list is returned before it is closed
}

func newControl(n *node, after time.Duration) *control {
	n.t.Helper()
	c := &control{n: n, dir: n.t.TempDir(), after: after}
	if err := os.WriteFile(filepath.Join(c.dir, "ovs-vswitchd.pid"), []byte("1\n"), 0o600); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(n.Dir, "br-int.mgmt"), filepath.Join(c.dir, "br-int.mgmt")); err != nil {
		n.t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(c.dir, "ovs-vswitchd.1.ctl"))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go c.answer(conn)
		}
	}()
	n.flows.runDir = c.dir
	return c
}

func (c *control) answer(conn net.Conn) {
	defer conn.Close()
	var request struct {
		Method string
		Params []string
	}
	if err := json.NewDecoder(conn).Decode(&request); err != nil {
		return
	}
	if request.Method == "dpctl/dump-conntrack" {
		c.lists.Add(1)
		time.Sleep(c.after) // simulates a long list
		if c.hold != nil {
			<-c.hold
		}
	}
	text := c.n.Appctl(request.Method, request.Params...)
	_ = json.NewEncoder(conn).Encode(map[string]any{"id": 0, "result": text, "error": nil})
}

const openToAll = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: all, namespace: ns}\n" +
	"spec: {podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}\n"

// newOpenNode has a connection between two pods for which policies allow everything; open reports whether it still
// exists.
func newOpenNode(t *testing.T) (n *node, open func() bool) {
	t.Helper()
	n = newNode(t, api.AgentConfig{NetworkPolicies: api.PoliciesEnforce, PolicyStart: api.PolicyStartClosed})
	n.NameSocket()
	n.has(openToAll)
	to := n.pod("a", 5)
	n.pod("b", 6)
	n.apply(n.round())
	n.looked()
	n.flows.policies.tightened.again = time.Time{} // the initial scan does not matter
	n.connect(40000)
	open = func() bool { return strings.Contains(n.Appctl("dpctl/dump-conntrack"), "sport=40000") }
	if !open() {
		t.Fatal("there is no connection to ", to.Pod())
	}
	return n, open
}

// connect makes the second pod open a connection to the first.
func (n *node) connect(port int) {
	n.t.Helper()
	n.sends(17, fmt.Sprintf("udp(src=%d,dst=9)", port))
}

// sends makes the second pod send a packet to the first.
func (n *node) sends(protocol int, header string) {
	n.t.Helper()
	from := n.pods[1]
	n.Appctl("netdev-dummy/receive", from.HostIf, fmt.Sprintf("in_port(2),eth(src=%s,dst=%s),eth_type(0x0800),"+
		"ipv4(src=10.77.1.6,dst=10.77.1.5,proto=%d,tos=0,ttl=64,frag=no),%s", from.MAC,
		api.MAC{2, 0, 0, 0, 0, 0x99}, protocol, header))
}

// follow calls SyncPolicies.
func (n *node) follow() {
	n.t.Helper()
	if done, err := n.flows.SyncPolicies(n.soon()); !done || err != nil {
		n.t.Fatal(done, err)
	}
}

// A scan of connections that takes longer than ovs-vswitchd's other commands ends those that policies deny, delays no
// round, and is reported while it runs.
func TestConnectionsThatAreListedSlowly(t *testing.T) {
	n, open := newOpenNode(t)
	c := newControl(n, 2500*time.Millisecond)
	c.hold = make(chan struct{})
	n.has(strings.ReplaceAll(openToAll, "ingress: [{}]", "ingress: []"))
	began := time.Now()
	n.follow() // the loop does not wait for the answer, which is still held back
	close(c.hold)
	n.flows.policies.tightened.began = began.Add(-scanLate) // as if it had taken that long
	if !n.flows.Due() {
		t.Error("nothing is to be reported")
	}
	if _, done := n.apply(n.round()); done.Degraded == nil || !strings.Contains(done.Degraded.Error(), "policies deny") {
		t.Errorf("reported is %v", done.Degraded)
	}
	if n.looked(); open() {
		t.Error("the connection continues")
	}
	if !n.flows.Due() {
		t.Error("that it is over is not to be reported")
	}
	if _, done := n.apply(n.round()); done.Degraded != nil {
		t.Errorf("when it is over, reported is %v", done.Degraded)
	}
}

// If rules become stricter during a scan, another one follows; if they again allow a connection that it would end, the
// connection continues. In this test a scan ends only after the rules have changed, however long that takes.
func TestPoliciesThatChangeDuringALook(t *testing.T) {
	n, open := newOpenNode(t)
	c := newControl(n, 0)
	c.hold = make(chan struct{})
	n.has(strings.ReplaceAll(openToAll, "ingress: [{}]", "ingress: []"))
	n.follow()
	n.has(openToAll)
	n.follow()
	close(c.hold)
	if n.looked(); !open() || c.lists.Load() != 1 {
		t.Errorf("after %d looks, of which the rules allow all when it is found, the connection continues: %t", c.lists.Load(), open())
	}
	c = newControl(n, 0)
	c.hold = make(chan struct{})
	n.has(openToAll + "---\n" + strings.ReplaceAll(openToAll, "name: all", "name: none"))
	n.follow()
	n.has(strings.ReplaceAll(openToAll, "ingress: [{}]", "ingress: []"))
	n.follow()
	close(c.hold)
	n.looked()
	if open() {
		t.Errorf("after %d looks, and rules that became stricter, the connection continues", c.lists.Load())
	}
}

// An agent that stops during a scan does not leave it running; the next agent ends the denied connections.
func TestAgentThatEndsDuringALook(t *testing.T) {
	n, open := newOpenNode(t)
	c := newControl(n, 0)
	c.hold = make(chan struct{})
	n.has(strings.ReplaceAll(openToAll, "ingress: [{}]", "ingress: []"))
	n.follow()
	n.flows.Stop()
	if n.flows.policies.tightened.busy() || !open() {
		t.Error("the survey continues, or has ended the connection")
	}
	close(c.hold)
	n.flows = NewFlows(n.db, n.cfg, "me", n.source, &status.NewMetrics("test").Loop, testr.New(t))
	t.Cleanup(n.flows.Stop)
	n.readAnew()
	n.flows.policies.rules = policies.NewRules(n.source.PolicyObjects())
	n.apply(n.round())
	if n.looked(); open() {
		t.Error("the next agent leaves the connection open")
	}
}

// If the connection to the switch is lost during a scan, it is repeated.
func TestSwitchThatIsLostDuringALook(t *testing.T) {
	n, open := newOpenNode(t)
	c := newControl(n, 0)
	c.hold = make(chan struct{})
	n.has(strings.ReplaceAll(openToAll, "ingress: [{}]", "ingress: []"))
	n.follow()
	n.flows.Close()
	close(c.hold)
	if n.looked(); !open() || n.flows.policies.tightened.failed == nil {
		t.Fatalf("without a switch, open: %t; it fails with %v", open(), n.flows.policies.tightened.failed)
	}
	n.apply(n.round())
	if n.looked(); open() {
		t.Error("the connection continues")
	}
}

// Ended connections are logged one by one; if there are many, the rest as a number.
func TestEndedConnectionsAreReported(t *testing.T) {
	for _, c := range []struct {
		connections int
		pings       bool
		one         int
		more        string
	}{{1, false, 1, ""}, {1, true, 2, ""}, {loggedOfPart + 3, false, loggedOfPart, `"count"=3`}} {
		n, open := newOpenNode(t)
		if c.pings {
			n.sends(1, "icmp(type=8,code=0)")
		}
		for i := 1; i < c.connections; i++ {
			n.connect(40000 + i)
		}
		var told []string
		n.flows.log = funcr.New(func(_, args string) { told = append(told, args) }, funcr.Options{})
		n.has(strings.ReplaceAll(openToAll, "ingress: [{}]", "ingress: []"))
		n.follow()
		if n.looked(); open() {
			t.Fatal("the connection continues")
		}
		all := strings.Join(told, "\n")
		if one := strings.Count(all, "ended a connection"); one != c.one || len(told)-one != strings.Count(all, "count") ||
			strings.Contains(all, "count") != (c.more != "") || !strings.Contains(all, c.more) {
			t.Errorf("of %d connections, these are reported:\n%s\nwant %d, and %q", c.connections, all, c.one, c.more)
		}
		if ping := `"protocol"="ICMP" "from"="10.77.1.6" "to"="10.77.1.5"`; strings.Contains(all, ping) != c.pings {
			t.Errorf("pings: %t, reported are\n%s", c.pings, all)
		}
	}
}
