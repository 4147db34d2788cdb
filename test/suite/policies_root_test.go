package suite

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

// seenYAML is a Pod with a label and what policies of other nodes need to know of it: its addresses and ports by name.
func seenYAML(p place, node, app string) string {
	ips := ""
	for _, a := range p.ips {
		ips += fmt.Sprintf("{ip: %q}, ", a)
	}
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, labels: {app: %s}}\n"+
		"spec: {nodeName: %s, containers: [{name: main, image: none, ports: [{name: web, containerPort: 8080}]}]}\n"+
		"status: {podIP: %q, podIPs: [%s]}\n", p.name, app, node, p.ips[0], strings.TrimSuffix(ips, ", "))
}

func policyYAML(name, spec string) string {
	return fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s}\nspec: {%s}\n", name, spec)
}

// allowed waits until connections from p to an address succeed as wanted, in both families, by TCP and UDP.
func allowed(t *testing.T, p, to place, port uint16, want bool) {
	t.Helper()
	right := make([]bool, 2*len(to.ips))
	wait(t, labtest.Patience(t, 10*time.Second), func() string {
		wrong := make([]string, len(right))
		var all sync.WaitGroup
		for n := range wrong {
			if right[n] {
				continue
			}
			all.Go(func() {
				wrong[n] = reachesWrongly(p, []string{"tcp", "udp"}[n%2], netip.AddrPortFrom(to.ips[n/2], port), want)
				right[n] = wrong[n] == ""
			})
		}
		all.Wait()
		return strings.Join(wrong, "")
	})
}

func reaches(t *testing.T, p place, network string, to netip.AddrPort, want bool) {
	t.Helper()
	wait(t, labtest.Patience(t, 10*time.Second), func() string { return reachesWrongly(p, network, to, want) })
}

// reachesWrongly reports a result other than want. A forbidden connection must fail three times in a row: on a machine
// that stalls for a moment, an allowed one fails once.
func reachesWrongly(p place, network string, to netip.AddrPort, want bool) string {
	for range 3 {
		err := askedSoon(p, network, to)
		if (err == nil) != want {
			return fmt.Sprintf("%s from %s to %s: %v, want it to work: %v\n", network, p.name, to, err, want)
		}
		if want {
			break
		}
	}
	return ""
}

// askedSoon asks with a short timeout, since packets are dropped on purpose.
func askedSoon(p place, network string, to netip.AddrPort) error {
	c, err := callWithin(p, network, to, 300*time.Millisecond)
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.SetDeadline(time.Now().Add(300 * time.Millisecond))
	if err == nil {
		_, err = fmt.Fprintln(c, "who")
	}
	if err == nil {
		_, err = c.r.ReadString('\n')
	}
	return err
}

// What NetworkPolicies allow passes, and nothing else, on one node and across, in both families, by TCP and UDP,
// through Services, while connections are open, and over the deaths of the agent and of ovs-vswitchd.
func TestRootPolicies(t *testing.T) {
	c := up(t, lab.Options{Config: []byte("networkPolicies: enforce\nservices: ovs\nserviceCIDR: 10.96.0.0/16\n" +
		"serviceCIDRv6: fd00:10:96::/112\n")})
	c.addPods(t, "a@node1", "b@node1", "c@node2", "d@node2")
	c.warm(t)
	a, b, remote, other := c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c"), c.pod(t, "d")
	for _, p := range []place{a, b, remote, other} {
		answerAll(t, p, 8080)
		answerAll(t, p, 9090)
	}
	for _, to := range []place{a, remote} {
		allowed(t, b, to, 8080, true)
	}
	before := c.flows(t, "node2")
	c.apply(t, seenYAML(a, "node1", "a"), seenYAML(b, "node1", "b"), seenYAML(remote, "node2", "c"), seenYAML(other, "node2", "d"))
	if after := c.flows(t, "node2"); after != before {
		t.Errorf("without policies the labels of pods changed flows\n%s\nbefore\n%s", after, before)
	}
	t.Run("ingress", func(t *testing.T) { ingressPolicies(t, c, a, b, remote, other) })
	t.Run("egress", func(t *testing.T) { egressPolicies(t, c, a, b, remote, other) })
	allowed(t, a, other, 9090, true)
	t.Run("node", func(t *testing.T) { nodeReaches(t, c, a) })
	t.Run("cases", func(t *testing.T) { policyCases(t, c, a, b, remote) })
	t.Run("own endpoint", func(t *testing.T) { ownEndpoint(t, c, a) })
	t.Run("fragments", func(t *testing.T) { fragments(t, c, a, b, remote) })
	t.Run("sctp", func(t *testing.T) { sctpPorts(t, c, a, b, remote) })
	t.Run("connections", func(t *testing.T) { openConnections(t, c, a, b) })
	t.Run("without ports", func(t *testing.T) { withoutPorts(t, c, a, b, remote) })
	t.Run("deaths", func(t *testing.T) { deathsUnderPolicies(t, c, a, b, remote) })
	wait(t, labtest.Patience(t, 5*time.Second), func() string {
		if after := sortedLines(c.flows(t, "node2")); after != sortedLines(before) {
			return fmt.Sprintf("after the last policy has gone the flows are\n%s\nbefore\n%s", after, before)
		}
		return ""
	})
}

func sortedLines(text string) string {
	return strings.Join(slices.Sorted(strings.Lines(text)), "")
}

func ingressPolicies(t *testing.T, c cluster, a, b, remote, other place) {
	deny := policyYAML("deny", "podSelector: {matchLabels: {app: a}}, policyTypes: [Ingress]")
	c.apply(t, deny)
	for _, from := range []place{b, remote} {
		allowed(t, from, a, 8080, false)
		allowed(t, from, b, 8080, true)
	}
	allowed(t, a, remote, 8080, true) // connections that it opens itself
	c.apply(t, policyYAML("web", "podSelector: {matchLabels: {app: a}}, ingress: [{from: [{podSelector: {matchExpressions: "+
		"[{key: app, operator: In, values: [b, c]}]}}], ports: [{port: web}, {port: 9000, endPort: 9100, protocol: UDP}]}]"))
	for _, from := range []place{b, remote} {
		for i := range a.ips {
			reaches(t, from, "tcp", netip.AddrPortFrom(a.ips[i], 8080), true)
			reaches(t, from, "udp", netip.AddrPortFrom(a.ips[i], 9090), true)
			reaches(t, from, "tcp", netip.AddrPortFrom(a.ips[i], 9090), false)
			reaches(t, from, "udp", netip.AddrPortFrom(a.ips[i], 8080), false)
		}
	}
	allowed(t, other, a, 8080, false)
	c.remove(t, deny, policyYAML("web", "podSelector: {}"))
	allowed(t, other, a, 9090, true)
}

func egressPolicies(t *testing.T, c cluster, a, b, remote, other place) {
	c.apply(t, serviceYAML("remote", 1, "", 8080, remote), serviceYAML("other", 2, "", 8080, other))
	for n := range 2 {
		reaches(t, a, "tcp", netip.AddrPortFrom(clusterIPs(1 + n)[0], 80), true)
	}
	block := ""
	for i, p := range []string{"0.0.0.0/0", "::/0"} {
		block += fmt.Sprintf("{ipBlock: {cidr: %q, except: [\"%s/%d\"]}},", p, other.ips[i], other.ips[i].BitLen())
	}
	out := policyYAML("out", "podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: ["+block+
		"], ports: [{port: 8080}, {port: 8080, protocol: UDP}]}]")
	c.apply(t, out)
	defer c.remove(t, out, serviceYAML("remote", 1, "", 8080, remote), serviceYAML("other", 2, "", 8080, other))
	allowed(t, a, other, 8080, false)
	allowed(t, a, remote, 8080, true)
	allowed(t, a, b, 8080, true)
	allowed(t, a, b, 9090, false)
	allowed(t, b, a, 9090, true) // its answers
	for i := range 2 {
		for _, network := range []string{"tcp", "udp"} {
			reaches(t, a, network, netip.AddrPortFrom(clusterIPs(1)[i], 80), true)
			reaches(t, a, network, netip.AddrPortFrom(clusterIPs(2)[i], 80), false)
		}
	}
}

// The node reaches its own pods, whatever the policies; traffic that it forwards to them with an address of its own, as
// kube-proxy does with connections to a NodePort, does not.
func nodeReaches(t *testing.T, c cluster, a place) {
	node, outside := c.host(t, "node1"), c.host(t, "node2")
	var doors []netip.AddrPort
	for i, p := range c.NodeAddrs(1) {
		program := []string{"iptables", "ip6tables"}[i]
		node.exec(t, fmt.Sprintf("%s -w -t nat -I PREROUTING -p tcp --dport 30080 -j DNAT --to %s", program,
			netip.AddrPortFrom(a.ips[i], 8080)))
		node.exec(t, program+" -w -t nat -I POSTROUTING -p tcp --dport 8080 -m conntrack --ctstate DNAT -j MASQUERADE")
		doors = append(doors, netip.AddrPortFrom(p.Addr(), 30080))
	}
	forwarded := func(want bool) {
		t.Helper()
		for _, door := range doors {
			reaches(t, outside, "tcp", door, want)
		}
	}
	forwarded(true)
	all := policyYAML("all", "podSelector: {}, policyTypes: [Ingress, Egress]")
	c.apply(t, all)
	allowed(t, outside, a, 8080, false)
	allowed(t, node, a, 8080, true)
	forwarded(false)
	c.remove(t, all)
	allowed(t, outside, a, 8080, true)
	forwarded(true)
}

// Connections that a policy denies end, those that it allows continue; both began before the pod was isolated.
func openConnections(t *testing.T, c cluster, a, b place) {
	says := func(conn dialled, limit time.Duration) error {
		got, err := conn.askWithin(t, limit)
		if err == nil && !strings.HasPrefix(got, "a ") {
			err = errors.New(got)
		}
		return err
	}
	open := func(network string, port uint16) dialled {
		conn, err := call(t, b, network, netip.AddrPortFrom(a.ips[0], port), 0)
		must(t, 0, err)
		wait(t, labtest.Patience(t, 20*time.Second), func() string { // some datagrams are lost
			return errText(says(conn, 4*time.Second))
		})
		return conn
	}
	first := open("tcp", 8080)
	web := policyYAML("web", "podSelector: {matchLabels: {app: a}}, policyTypes: [Ingress, Egress], ingress: [{ports: [{port: 8080}, {port: 8080, protocol: UDP}]}]")
	c.apply(t, web)
	allowed(t, b, a, 9090, false)
	must(t, 0, says(first, time.Minute))
	second, third := open("tcp", 8080), open("udp", 8080)
	node := c.host(t, "node1")
	late(t, node, func() {
		c.apply(t, policyYAML("web", "podSelector: {matchLabels: {app: a}}, ingress: [{ports: [{port: 9090}, {port: 9090, protocol: UDP}]}]"))
		lost := 0
		wait(t, labtest.Patience(t, 10*time.Second), func() string {
			// This makes the datapath recreate a connection that was deleted from conntrack.
			must(t, 0, says(first, time.Minute))
			// An answer in flight when the connection is deleted from conntrack, which happens twice, is lost.
			if _, err := third.askBy(t, time.Now().Add(time.Second)); !errors.Is(err, os.ErrDeadlineExceeded) || lost == 4 {
				must(t, 0, err)
			} else {
				lost++
			}
			if flows := node.exec(t, "ovs-ofctl dump-flows br-int"); !strings.Contains(flows, "tp_dst=9090") {
				return flows
			}
			return ""
		})
	})
	allowed(t, b, a, 9090, true)
	ends(t, func() { reaches(t, b, "tcp", netip.AddrPortFrom(a.ips[0], 9090), true) }, first, second, third)
	c.remove(t, web)
	allowed(t, b, a, 8080, true)
}

// late pauses the datapath's revalidation until do has returned, as if the machine were busy.
func late(t *testing.T, node place, do func()) {
	t.Helper()
	node.exec(t, "ovs-appctl revalidator/pause")
	defer node.exec(t, "ovs-appctl revalidator/resume")
	do()
}

// ends waits until connections get no answers for a second, and then checks that nothing sent on them is answered. On a
// busy machine replies arrive late, but before the reply to a later, allowed request.
func ends(t *testing.T, askAllowed func(), conns ...dialled) {
	t.Helper()
	read := func(limit time.Duration) (got string) {
		for end, i := time.Now().Add(limit), 0; i < len(conns); i++ {
			must(t, 0, conns[i].SetDeadline(end))
			line, _ := conns[i].r.ReadString('\n') // an error is no answer
			got += line
		}
		return got
	}
	answered := func() string {
		for _, conn := range conns {
			must(t, 0, conn.SetDeadline(time.Now().Add(time.Second)))
			_, _ = fmt.Fprintln(conn, "who")
		}
		got := read(time.Second)
		askAllowed()
		return got + read(50*time.Millisecond)
	}
	wait(t, labtest.Patience(t, 10*time.Second), func() string {
		if got := answered(); got != "" {
			return fmt.Sprintf("a connection that the policy forbids goes on: %q", got)
		}
		return ""
	})
	for range 3 { // TCP retransmits these and their answers
		if got := answered(); got != "" {
			t.Errorf("a connection that had ended goes on: %q", got)
		}
	}
}

// Without an agent, without ovs-vswitchd, without both, and while they start, nothing forbidden passes; without an
// agent no allowed connection ends.
func deathsUnderPolicies(t *testing.T, c cluster, a, b, remote place) {
	web := policyYAML("web", "podSelector: {matchLabels: {app: a}}, ingress: [{ports: [{port: 8080}]}]")
	forbidden := netip.AddrPortFrom(a.ips[0], 9090)
	c.apply(t, policyYAML("web", "podSelector: {matchLabels: {app: a}}, ingress: [{ports: [{port: 9090}]}]"))
	reaches(t, b, "tcp", netip.AddrPortFrom(a.ips[0], 8080), false)
	_, err := call(t, b, "tcp", forbidden, 0) // which ends now
	must(t, 0, err)
	c.apply(t, web)
	defer c.remove(t, web)
	reaches(t, b, "udp", forbidden, false)
	reaches(t, remote, "udp", forbidden, false)
	open, err := call(t, remote, "tcp", netip.AddrPortFrom(a.ips[0], 8080), 0)
	must(t, 0, err)
	// Flows of ended connections are lost if both die; those of ended pings are removed once conntrack has none.
	flows := func(ended bool) string {
		return strings.Join(slices.DeleteFunc(slices.Sorted(strings.Lines(c.flows(t, "node1"))), func(line string) bool {
			pings := strings.Contains(line, "priority=120,ct_state=-rpl")
			return pings || !ended && (strings.Contains(line, "priority=120,") || strings.Contains(line, "priority=121,"))
		}), "")
	}
	before := map[bool]string{}
	wait(t, labtest.Patience(t, 10*time.Second), func() string {
		if before[true], before[false] = flows(true), flows(false); before[true] == before[false] {
			return "no connection has been ended"
		}
		return ""
	})
	c.datapathFollows(t) // a few missing answers may only be late, and are no sign of the policy
	for _, die := range [][2]bool{{true, false}, {false, true}, {true, true}} {
		agent, vswitchd := die[0], die[1]
		tries := trying(t, forbidden, b, remote)
		if agent {
			must(t, 0, c.AgentKill(labtest.Within(t, 5*time.Second), "node1"))
		}
		if vswitchd {
			must(t, 0, c.OVSKill(labtest.Within(t, 10*time.Second), "node1", lab.Vswitchd))
			must(t, 0, c.OVSStart(labtest.Within(t, 20*time.Second), "node1", lab.Vswitchd))
		}
		if agent {
			must(t, 0, c.AgentStart(labtest.Within(t, 15*time.Second), "node1"))
		}
		must(t, 0, c.WaitReady(labtest.Within(t, 30*time.Second), "node1"))
		reaches(t, remote, "tcp", netip.AddrPortFrom(a.ips[0], 8080), true)
		if sent, answered := tries(); sent == 0 || answered > 0 {
			t.Errorf("death of agent: %v, of ovs-vswitchd: %v: %d of %d forbidden datagrams were answered", agent, vswitchd,
				answered, sent)
		}
		wait(t, labtest.Patience(t, 10*time.Second), func() string {
			ended := !agent || !vswitchd
			if after := flows(ended); after != before[ended] {
				return fmt.Sprintf("flows\n%s\nbefore\n%s", after, before[ended])
			}
			return ""
		})
		if vswitchd {
			continue
		}
		if got, err := open.ask(t); err != nil || !strings.HasPrefix(got, "a ") {
			t.Errorf("the connection over the death of the agent: %q, %v", got, err)
		}
	}
}

// trying sends datagrams from each pod every few milliseconds until done is called, which returns how many were sent
// and answered.
func trying(t *testing.T, to netip.AddrPort, from ...place) (done func() (sent, answered int)) {
	t.Helper()
	var n, back atomic.Int64
	var all sync.WaitGroup
	stop := make(chan struct{})
	for _, p := range from {
		conn, err := call(t, p, "udp", to, 0)
		must(t, 0, err)
		all.Go(func() {
			for {
				if _, err := fmt.Fprintln(conn, "who"); err == nil {
					n.Add(1)
				}
				select {
				case <-stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
			}
		})
		go func() {
			for {
				if _, err := conn.r.ReadString('\n'); err == nil {
					back.Add(1)
				} else if errors.Is(err, net.ErrClosed) {
					return
				}
			}
		}()
	}
	return func() (int, int) {
		close(stop)
		all.Wait()
		return int(n.Load()), int(back.Load())
	}
}

// callWithin is call with a limit of its own.
func callWithin(p place, network string, to netip.AddrPort, limit time.Duration) (c dialled, err error) {
	err = p.do(func() (err error) {
		c.Conn, err = net.DialTimeout(network, to.String(), limit)
		return err
	})
	if err == nil {
		c.r = bufio.NewReader(c)
	}
	return c, err
}
