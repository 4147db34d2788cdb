package suite

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// Whenever an agent is killed while it changes many Services, the next one repairs what it leaves, and no connection to
// a Service is affected.
func TestRootServicesKills(t *testing.T) {
	ovstest.UserspaceOnly(t, "what the agent sends to ovs-vswitchd does not depend on the datapath")
	rounds := 2
	if os.Getenv("FAIRLEAD_TEST_LONG") != "" {
		rounds = 30
	}
	c := up(t, lab.Options{Config: []byte("services: ovs\nserviceCIDR: 10.96.0.0/16\nserviceCIDRv6: fd00:10:96::/112\n")})
	c.addPods(t, "a@node1", "b@node1", "c@node2")
	c.warm(t)
	a, b, remote := c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c")
	answerAll(t, b, 8080)
	answerAll(t, remote, 8080)
	const many = 40
	services := func(port int) (all []string) {
		for n := range many {
			spec := []string{"", "sessionAffinity: ClientIP,"}[n%2]
			endpoints := [][]place{{b}, {b, remote}, {remote}}[(n+port)%3]
			all = append(all, serviceYAML(fmt.Sprintf("s%d", n), 10+n, spec, port, endpoints...))
		}
		return all
	}
	c.apply(t, append(services(8080), serviceYAML("stays", 1, "", 8080, b, remote))...)
	vip := netip.AddrPortFrom(clusterIPs(1)[0], 80)
	var open dialled
	wait(t, labtest.Patience(t, 10*time.Second), func() (wrong string) {
		var err error
		if open, err = call(t, a, "tcp", vip, 0); err != nil {
			return err.Error()
		}
		return ""
	})
	served, err := open.ask(t)
	must(t, 0, err)
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	node := c.host(t, "node1")
	for round := range rounds {
		port := 8080 + round%3
		killed := make(chan error)
		after := time.Duration(r.IntN(150)) * time.Millisecond
		time.AfterFunc(after, func() { killed <- c.AgentKill(labtest.Within(t, 5*time.Second), "node1") })
		for _, s := range services(port) {
			c.apply(t, s)
		}
		must(t, 0, <-killed)
		must(t, 0, c.AgentStart(labtest.Within(t, 15*time.Second), "node1"))
		wait(t, labtest.Patience(t, 20*time.Second), func() string {
			// Both nodes have the same Services.
			mine, other := groupsOf(t, node), groupsOf(t, c.host(t, "node2"))
			if mine != other {
				return "the nodes differ: " + difference(mine, other)
			}
			if n := strings.Count(c.flows(t, "node1"), "table=2, priority=200,"); n != 4*(many+1) {
				return fmt.Sprintf("killed after %v: %d ports of Services, want %d", after, n, 4*(many+1))
			}
			return ""
		})
		if got, err := open.ask(t); got != served {
			t.Fatalf("killed after %v: the connection to %q is answered by %q, %v", after, served, got, err)
		}
		if got, err := asked(t, a, "tcp", vip); err != nil {
			t.Errorf("killed after %v: a new connection: %q, %v", after, got, err)
		}
	}
}

// groupsOf are the groups of a node, in order.
func groupsOf(t *testing.T, node place) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(node.exec(t, "ovs-ofctl -OOpenFlow15 dump-groups br-int")) {
		if strings.Contains(line, "group_id=") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
