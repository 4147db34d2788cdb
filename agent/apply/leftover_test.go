package apply

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"

	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/openflow"
)

const goneEndpoint, otherEndpoint = "{addresses: [10.77.1.6], conditions: {ready: true}}",
	"{addresses: [10.77.1.7], conditions: {ready: true}}"

// newClientNode has a pod that sends to the only endpoint of a Service, by UDP.
func newClientNode(t *testing.T) *node {
	t.Helper()
	n := newServiceNode(t, 53)
	n.looked() // without a result
	n.NameSocket()
	n.has(serviceManifests(53, goneEndpoint))
	n.sync("an endpoint", true)
	n.looked()
	// Neither the state at the start nor the previous endpoint matters.
	n.flows.leftover.unseen.again, n.flows.leftover.gone = time.Time{}, map[openflow.Translation]time.Time{}
	n.connects(40000, "10.77.1.6")
	n.has(serviceManifests(53, otherEndpoint)) // which the agent has not processed yet
	return n
}

// ask sends a packet to the Service.
func (n *node) ask(port int) {
	n.t.Helper()
	n.Appctl("netdev-dummy/receive", n.pods[0].HostIf, fmt.Sprintf("in_port(1),eth(src=%s,dst=02:00:00:00:00:99),"+
		"eth_type(0x0800),ipv4(src=10.77.1.5,dst=10.96.0.10,proto=17,tos=0,ttl=64,frag=no),udp(src=%d,dst=53)",
		n.pods[0].MAC, port))
}

// connects sends from successive ports, starting with port, until there is a connection to an endpoint. Packets are
// dropped until the datapath has caught up with the tables.
func (n *node) connects(port int, endpoint string) {
	n.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; port++ {
		n.ask(port)
		all, there := n.connections(endpoint)
		if there {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("not after a minute: a connection to %s\n%s", endpoint, all)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// connected fails the test unless conntrack has a connection to an endpoint, or has none, as wanted.
func (n *node) connected(when, endpoint string, want bool) {
	n.t.Helper()
	if all, there := n.connections(endpoint); there != want {
		n.t.Errorf("%s: a connection to %s: %t, want %t\n%s", when, endpoint, there, want, all)
	}
}

// connections returns all connections of conntrack, and whether one of them is to an endpoint.
func (n *node) connections(endpoint string) (all string, there bool) {
	all = n.Appctl("dpctl/dump-conntrack")
	return all, regexp.MustCompile(`dst=10\.96\.0\.10,.*reply=\(src=` + endpoint + ",").MatchString(all)
}

// comes fails the test unless the second removal, for work that began at the given time, is due when the datapath must
// have caught up, not earlier, however late this process checks. It then makes it due.
func (n *node) comes(began time.Time) {
	n.t.Helper()
	all := []*time.Time{&n.flows.leftover.unseen.again, &n.flows.policies.tightened.again}
	planned := slices.Collect(maps.Values(n.flows.leftover.gone))
	for _, again := range all {
		if !again.IsZero() {
			planned = append(planned, *again)
		}
	}
	at := func(of time.Duration) {
		for to := range n.flows.leftover.gone {
			n.flows.leftover.gone[to] = time.Now().Add(of)
		}
		for _, again := range all {
			if !again.IsZero() {
				*again = time.Now().Add(of)
			}
		}
	}
	at(time.Hour)
	early := len(planned) == 0 || slices.MinFunc(planned, time.Time.Compare).Before(began.Add(staleFor))
	if early || n.flows.Due() {
		n.t.Fatalf("began at %s: the second time is due never or at once: %s", began, planned)
	}
	if at(-time.Millisecond); !n.flows.Due() {
		n.t.Error("the second time is not due when it has come")
	}
}

// Connections to a removed endpoint are removed immediately, and once more when the datapath has caught up.
func TestGoneEndpointsAreForgottenTwice(t *testing.T) {
	n := newClientNode(t)
	began := time.Now()
	n.sync("another endpoint", true)
	n.connected("at once", "10.77.1.6", false)
	n.comes(began)
	n.sync("the second time", true)
	if len(n.flows.leftover.gone) != 0 || n.flows.Due() {
		t.Errorf("after the second time: %v", n.flows.leftover.gone)
	}
}

// The same after the second removal has failed.
func TestGoneEndpointsAreForgottenAfterAFailure(t *testing.T) {
	n := newClientNode(t)
	n.sync("another endpoint", true)
	for to := range n.flows.leftover.gone {
		n.flows.leftover.gone[to] = time.Now().Add(-time.Millisecond)
	}
	never, cancel := context.WithCancel(t.Context())
	cancel()
	n.flows.flushGone(never)
	if len(n.flows.leftover.gone) != 1 {
		t.Errorf("what could not be forgotten is not tried again: %v", n.flows.leftover.gone)
	}
}

// Nor do connections continue to endpoints that were removed while ovs-vswitchd was down, that no running agent has
// known, or that existed when a change was sent without confirmation.
func TestEndpointsThatWentUnseen(t *testing.T) {
	for name, away := range map[string]func(n *node){
		"ovs-vswitchd starts": func(n *node) {
			n.flows.Stop()
			n.Ofctl("del-flows", "br-int") // conntrack is usually the kernel's, and survives
			n.Ofctl("del-groups", "br-int")
		},
		"agent and ovs-vswitchd start": func(n *node) {
			n.flows.Stop()
			n.Ofctl("del-flows", "br-int")
			n.flows = NewFlows(n.db, n.cfg, "me", n.source, &status.NewMetrics("test").Loop, testr.New(t))
			n.t.Cleanup(n.flows.Stop)
		},
		"a change without an answer": func(n *node) {
			never, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := n.flows.SyncServices(never); err == nil {
				n.t.Fatal("a change succeeds that has no time")
			}
			n.Ofctl("del-flows", "br-int", "table=2,udp") // the change had taken effect
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newClientNode(t)
			away(n)
			began := time.Now()
			n.apply(n.round())
			n.looked()
			n.connects(41000, "10.77.1.7")
			n.connected("when it is back", "10.77.1.6", false)
			if n.flows.leftover.unseen.again.IsZero() {
				t.Fatal("connections are looked at once")
			}
			n.comes(began)
			n.sync("the second time", true)
			n.looked()
			n.connected("the second time", "10.77.1.7", true)
			if n.flows.Due() {
				t.Error("connections are looked at for ever")
			}
		})
	}
}
