package suite

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

// send sends n datagrams from a pod, each from another port.
func (p place) send(t *testing.T, to netip.AddrPort, n int) {
	t.Helper()
	for range n {
		var c net.Conn
		must(t, 0, p.do(func() (err error) { c, err = net.Dial("udp", to.String()); return err }))
		_, err := c.Write([]byte("x"))
		must(t, 0, err)
		c.Close()
	}
}

// What policies deny to pods of a Namespace that logs it is in the agent's log: who was denied what, and why. A flood
// is logged in a few lines, and nothing of it passes, even while the annotation is added and removed. Logging continues
// after the deaths of the agent and of ovs-vswitchd.
func TestRootDeniedPacketsAreLogged(t *testing.T) {
	c := up(t, lab.Options{Config: []byte("networkPolicies: enforce\nservices: ovs\nserviceCIDR: 10.96.0.0/16\n" +
		"serviceCIDRv6: fd00:10:96::/112\n")})
	c.addPods(t, "a@node1", "b@node1", "c@node2")
	c.warm(t)
	a, b, remote := c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c")
	answerAll(t, a, 8080)
	const annotated = "apiVersion: v1\nkind: Namespace\nmetadata: {name: default, annotations: " +
		"{policy.fairlead.dev/log-denied: %q}}\n"
	logs := fmt.Sprintf(annotated, "true")
	c.apply(t, seenYAML(a, "node1", "a"), seenYAML(b, "node1", "b"), seenYAML(remote, "node2", "c"), logs,
		policyYAML("in", "podSelector: {matchLabels: {app: a}}, ingress: [{ports: [{port: 8080}]}]"),
		policyYAML("out", "podSelector: {matchLabels: {app: b}}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}]}]"),
		"apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: lock}\nspec: {tier: Admin, "+
			"priority: 1, subject: {namespaces: {}}, egress: [{name: no-test-net, action: Deny, to: "+
			"[{networks: [198.51.100.0/24, 2001:db8:1::/48]}]}]}")
	line := func(from place, to netip.AddrPort, texts ...string) {
		t.Helper()
		var sent time.Time // below the rate limit
		wait(t, labtest.Patience(t, 15*time.Second), func() string {
			if time.Since(sent) > 200*time.Millisecond {
				from.send(t, to, 1)
				sent = time.Now()
			}
			for l := range strings.Lines(c.log(t, "node1")) {
				lacks := func(text string) bool { return !strings.Contains(l, text) }
				if !lacks("policies deny a packet") && !slices.ContainsFunc(texts, lacks) {
					return ""
				}
			}
			return fmt.Sprintf("no line has %q in\n%s", texts, c.log(t, "node1"))
		})
	}
	for i := range a.ips {
		line(b, netip.AddrPortFrom(a.ips[i], uint16(9000+i)), "default/a", "ingress", "pod default/b", b.ips[i].String(), "UDP",
			fmt.Sprint(9000+i), "isolated by NetworkPolicy default/in, and no rule accepts it")
		line(remote, netip.AddrPortFrom(a.ips[i], uint16(9010+i)), "default/a", "ingress", "pod default/c", "UDP",
			fmt.Sprint(9010+i))
	}
	line(b, netip.MustParseAddrPort("203.0.113.9:9020"), "default/b", "egress", "203.0.113.9", "9020",
		"isolated by NetworkPolicy default/out, and no rule accepts it")
	line(a, netip.MustParseAddrPort("[2001:db8:1::9]:9021"), "default/a", "egress", "2001:db8:1::9", "9021",
		"egress[0] (no-test-net) of ClusterNetworkPolicy lock denies it, in tier Admin")

	var passed atomic.Int64
	forbidden := netip.AddrPortFrom(a.ips[0], 9999)
	var in net.PacketConn
	must(t, 0, a.do(func() (err error) { in, err = net.ListenPacket("udp", forbidden.String()); return err }))
	defer in.Close()
	go func() {
		for b := make([]byte, 9); ; passed.Add(1) {
			if _, _, err := in.ReadFrom(b); err != nil {
				return
			}
		}
	}()
	t.Run("flood", func(t *testing.T) {
		const seen = "fairlead_policy_denied_packets_seen_total"
		packets, lines, start := c.metric(t, "node1", seen), strings.Count(c.log(t, "node1"), "policies "), time.Now()
		b.send(t, forbidden, 1000)
		for port := range uint16(100) {
			b.send(t, netip.AddrPortFrom(a.ips[1], 20000+port), 1)
		}
		wait(t, labtest.Patience(t, 10*time.Second), func() string {
			if came := c.metric(t, "node1", seen) - packets; came < 20 {
				return fmt.Sprintf("%v packets have come", came)
			}
			return ""
		})
		lines = strings.Count(c.log(t, "node1"), "policies ") - lines
		packets = c.metric(t, "node1", seen) - packets
		seconds := time.Since(start).Seconds() + 2
		if packets > 50+20*seconds || float64(lines) > min(packets, 50+5*seconds) {
			t.Errorf("1100 packets in %.1f s have come as %v to the agent, which has written %d lines", seconds, packets, lines)
		}
		t.Logf("of 1100 packets in %.1f s, %v came, and made %d lines", seconds, packets, lines)
	})
	t.Run("annotation", func(t *testing.T) {
		tries := trying(t, forbidden, b, remote)
		for range 5 {
			for _, is := range []string{"false", "true"} {
				c.apply(t, fmt.Sprintf(annotated, is))
				wait(t, labtest.Patience(t, 10*time.Second), func() string {
					if now := strings.Contains(c.flows(t, "node1"), "CONTROLLER"); fmt.Sprint(now) != is {
						return "flows show packets to the agent: " + fmt.Sprint(now) + ", want " + is
					}
					return ""
				})
			}
		}
		if sent, _ := tries(); sent < 20 {
			t.Errorf("only %d datagrams were sent", sent)
		}
	})
	for i, die := range []func(){
		func() {
			must(t, 0, c.AgentKill(labtest.Within(t, 5*time.Second), "node1"))
			must(t, 0, c.AgentStart(labtest.Within(t, 15*time.Second), "node1"))
		},
		func() {
			must(t, 0, c.OVSKill(labtest.Within(t, 10*time.Second), "node1", lab.Vswitchd))
			must(t, 0, c.OVSStart(labtest.Within(t, 20*time.Second), "node1", lab.Vswitchd))
		},
	} {
		die()
		must(t, 0, c.WaitReady(labtest.Within(t, 30*time.Second), "node1"))
		port := uint16(9100 + i)
		line(b, netip.AddrPortFrom(a.ips[0], port), "default/a", "ingress", fmt.Sprint(port))
	}
	if n := passed.Load(); n != 0 {
		t.Errorf("%d forbidden datagrams have passed", n)
	}
	reaches(t, b, "udp", netip.AddrPortFrom(a.ips[0], 8080), false) // the policy is for TCP
	reaches(t, b, "tcp", netip.AddrPortFrom(a.ips[0], 8080), true)
}
