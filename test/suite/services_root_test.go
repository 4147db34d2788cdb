package suite

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// clusterIPs are those of a Service by its number, IPv4 first.
func clusterIPs(n int) []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(n)}),
		netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%x", n))}
}

// serviceYAML is a Service of both families, port 80 for TCP and UDP, whose endpoints are the pods' port.
func serviceYAML(name string, n int, spec string, port int, endpoints ...place) string {
	ips := clusterIPs(n)
	s := fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\n"+
		"spec: {clusterIP: %s, clusterIPs: [%[2]s, \"%[3]s\"], %s\n"+
		"  ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}\n", name, ips[0], ips[1], spec)
	for i, family := range []string{"IPv4", "IPv6"} {
		s += fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
			"metadata: {name: %[1]s-%[2]s, labels: {kubernetes.io/service-name: %[1]s}}\naddressType: %[3]s\n"+
			"ports: [{name: t, port: %[4]d}, {name: u, port: %[4]d, protocol: UDP}]\nendpoints:\n",
			name, strings.ToLower(family), family, port)
		for _, e := range endpoints {
			s += fmt.Sprintf("- {addresses: [\"%s\"]}\n", e.ips[i])
		}
		if len(endpoints) == 0 {
			s += "  []\n"
		}
	}
	return s
}

// answerAll starts servers in the pod that answer each line or datagram with "NAME CLIENT-ADDRESS", by TCP and UDP.
func answerAll(t *testing.T, p place, port int) {
	t.Helper()
	var l net.Listener
	var u net.PacketConn
	must(t, 0, p.do(func() (err error) {
		if l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); err != nil {
			return err
		}
		u, err = net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		return err
	}))
	t.Cleanup(func() { l.Close(); u.Close() })
	say := func(from net.Addr) string {
		return p.name + " " + netip.MustParseAddrPort(from.String()).Addr().Unmap().String() + "\n"
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for r := bufio.NewScanner(conn); r.Scan(); {
					fmt.Fprint(conn, say(conn.RemoteAddr()))
				}
			}()
		}
	}()
	go func() {
		b := make([]byte, 1500)
		for {
			_, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = u.WriteTo([]byte(say(from)), from)
		}
	}()
}

// reusable lets another socket have the port as well.
func reusable(_, _ string, c syscall.RawConn) (err error) {
	cerr := c.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET,
			syscall.SO_REUSEADDR, 1)
	})
	return errors.Join(cerr, err)
}

// answerLimit is the time limit for a connection or an answer that must come: the machine may stall for seconds, and
// TCP then retransmits after 7 s. A poll has a few tries within labtest.Limit.
const answerLimit = 20 * time.Second

// dialled is a client's connection.
type dialled struct {
	net.Conn
	r *bufio.Reader
}

// call connects from p, from a port of its own unless that is 0.
func call(t *testing.T, p place, network string, to netip.AddrPort, from int) (c dialled, err error) {
	t.Helper()
	err = p.do(func() (err error) {
		d := net.Dialer{Timeout: labtest.Patience(t, answerLimit)}
		if from != 0 && network == "tcp" {
			d.LocalAddr, d.Control = &net.TCPAddr{Port: from}, reusable
		}
		c.Conn, err = d.Dial(network, to.String())
		return err
	})
	if err == nil {
		t.Cleanup(func() { c.Close() })
		c.r = bufio.NewReader(c)
	}
	return c, err
}

// ask returns the other end's answer.
func (c dialled) ask(t *testing.T) (string, error) {
	t.Helper()
	return c.askWithin(t, answerLimit)
}

// askWithin is ask with a limit, for answers that may be lost.
func (c dialled) askWithin(t *testing.T, limit time.Duration) (string, error) {
	t.Helper()
	return c.askBy(t, time.Now().Add(labtest.Patience(t, limit)))
}

// askBy is ask with a deadline.
func (c dialled) askBy(t *testing.T, deadline time.Time) (string, error) {
	t.Helper()
	must(t, 0, c.SetDeadline(deadline))
	if _, err := fmt.Fprintln(c, "who"); err != nil {
		return "", err
	}
	line, err := c.r.ReadString('\n')
	return strings.TrimSpace(line), err
}

func asked(t *testing.T, p place, network string, to netip.AddrPort) (string, error) {
	t.Helper()
	c, err := call(t, p, network, to, 0)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return c.ask(t)
}

// Pods reach ClusterIPs without kube-proxy, in both families, by TCP and UDP, and the endpoint sees its client's own
// address, wherever it is.
func TestRootServices(t *testing.T) {
	c := up(t, lab.Options{Config: []byte("services: ovs\nserviceCIDR: 10.96.0.0/16\nserviceCIDRv6: fd00:10:96::/112\n")})
	c.addPods(t, "a@node1", "b@node1", "c@node2")
	c.warm(t)
	a, b, remote := c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c")
	for _, p := range []place{a, b, remote} {
		answerAll(t, p, 8080)
		answerAll(t, p, 50051)
	}
	c.apply(t, serviceYAML("local", 1, "", 8080, b), serviceYAML("remote", 2, "", 8080, remote),
		serviceYAML("both", 3, "", 8080, b, remote), serviceYAML("self", 4, "", 8080, a), serviceYAML("none", 5, "", 8080),
		serviceYAML("high", 6, "", 50051, remote), serviceYAML("same", 7, "sessionAffinity: ClientIP,", 8080, b, remote))
	for _, node := range c.Nodes() {
		wait(t, labtest.Patience(t, 10*time.Second), func() string {
			if got := strings.Count(c.flows(t, node), "table=2, priority=200,"); got != 24 {
				return fmt.Sprintf("%s has %d flows of ports of Services, want 24", node, got)
			}
			return ""
		})
	}
	for name, want := range map[string]float64{"fairlead_service_ports": 24, "fairlead_service_ports_refusing": 4} {
		wait(t, labtest.Patience(t, 10*time.Second), func() string {
			if got := c.metric(t, "node1", name); got != want {
				return fmt.Sprintf("%s is %v, want %v", name, got, want)
			}
			return ""
		})
	}
	t.Run("own address", func(t *testing.T) { ownAddress(t, a, b, remote, c.family.PodCIDRs(1)) })
	t.Run("affinity", func(t *testing.T) { affinity(t, c, a, b, remote) })
	t.Run("refused", func(t *testing.T) { refused(t, a) })
	t.Run("ended", func(t *testing.T) { endedConnections(t, c, a) })
	t.Run("same port", func(t *testing.T) { samePort(t, a, b) })
	t.Run("changes", func(t *testing.T) { changesOfServices(t, c, a, b, remote) })
	t.Run("restarts of Open vSwitch", func(t *testing.T) { restartsOfServices(t, c, a) })
}

func ownAddress(t *testing.T, a, b, remote place, podCIDRs []netip.Prefix) {
	for i := range 2 {
		for _, network := range []string{"tcp", "udp"} {
			for n, want := range map[int][]string{1: {"b"}, 2: {"c"}, 3: {"b", "c"}, 6: {"c"}} {
				to := netip.AddrPortFrom(clusterIPs(n)[i], 80)
				seen := map[string]bool{}
				for try := 0; try < 30 && len(seen) < len(want); try++ {
					got, err := asked(t, a, network, to)
					name, addr, _ := strings.Cut(got, " ")
					if seen[name] = true; err != nil || addr != a.ips[i].String() {
						t.Fatalf("%s to %s: %q, %v; want the client's own address %s", network, to, got, err, a.ips[i])
					}
				}
				for _, name := range want {
					if !seen[name] {
						t.Errorf("%s to %s: answers of %v, want of %s, too", network, to, seen, name)
					}
				}
			}
			// From the other node, and from the endpoint itself, which sees the gateway.
			if got, err := asked(t, remote, network, netip.AddrPortFrom(clusterIPs(1)[i], 80)); got != "b "+remote.ips[i].String() {
				t.Errorf("%s from the other node: %q, %v", network, got, err)
			}
			if got, err := asked(t, a, network, netip.AddrPortFrom(clusterIPs(4)[i],
				80)); got != "a "+gatewayOf(podCIDRs[i]).String() {
				t.Errorf("%s to itself: %q, %v", network, got, err)
			}
			first := ""
			for range 8 {
				got, err := asked(t, a, network, netip.AddrPortFrom(clusterIPs(7)[i], 80))
				if first == "" {
					first = got
				}
				if got != first || err != nil {
					t.Errorf("%s with session affinity: %q, then %q, %v", network, first, got, err)
				}
			}
		}
	}
	_ = b
}

// A client keeps its endpoint, also while others are added. It gets another one when its own leaves, and is forgotten
// when it has opened no connection for the timeout.
func affinity(t *testing.T, c cluster, a, b, remote place) {
	const sticks = "sessionAffinity: ClientIP,"
	short := "sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 1}},"
	c.apply(t, serviceYAML("short", 8, short, 8080, b, remote))
	served := map[string]string{} // by network and family
	to := func(i int) netip.AddrPort { return netip.AddrPortFrom(clusterIPs(7)[i], 80) }
	each := func(check func(key string, i int, network string)) {
		for i := range 2 {
			for _, network := range []string{"tcp", "udp"} {
				check(fmt.Sprint(network, i), i, network)
			}
		}
	}
	same := func(when string) {
		each(func(key string, i int, network string) {
			for range 8 {
				got, err := asked(t, a, network, to(i))
				if served[key] == "" {
					served[key] = got
				}
				if got != served[key] || err != nil {
					t.Errorf("%s, %s to %s: %q, %v; before %q", when, network, to(i), got, err, served[key])
				}
			}
		})
	}
	has := func(name string, endpoints int) {
		wait(t, labtest.Patience(t, 10*time.Second), func() string {
			flows := c.flows(t, "node1")
			if got := strings.Count(flows, "nw_dst=10.96.0.7,tp_dst=80,tcp_flags=+syn-ack actions=learn"); got != endpoints {
				return fmt.Sprintf("%s: %d endpoints, want %d in\n%s", name, got, endpoints, flows)
			}
			return ""
		})
	}
	same("at first")
	c.apply(t, serviceYAML("same", 7, sticks, 8080, b, remote, a))
	has("one more", 3)
	same("with one more endpoint")
	left := []place{b}
	if strings.HasPrefix(served["tcp0"], "b ") {
		left = []place{remote}
	}
	c.apply(t, serviceYAML("same", 7, sticks, 8080, left...))
	has("one left", 1)
	wait(t, labtest.Patience(t, 10*time.Second), func() string { // until the datapath is revalidated
		if got, err := asked(t, a, "tcp", to(0)); err != nil || !strings.HasPrefix(got, left[0].name+" ") {
			return fmt.Sprintf("the endpoint of %q has left: %q, %v", served["tcp0"], got, err)
		}
		return ""
	})
	known := func() bool {
		return strings.Contains(c.host(t, "node1").exec(t, "ovs-ofctl dump-flows br-int table=8"), "nw_dst=10.96.0.8")
	}
	wait(t, labtest.Patience(t, 10*time.Second), func() string {
		if _, err := asked(t, a, "tcp", netip.AddrPortFrom(clusterIPs(8)[0], 80)); err != nil || !known() {
			return fmt.Sprintf("no flow has been learned, %v", err)
		}
		return ""
	})
	wait(t, labtest.Patience(t, 20*time.Second), func() string {
		if known() {
			return "a client is known long after its timeout"
		}
		return ""
	})
}

// A Service without endpoints refuses at once, and so does a port that no Service has.
func refused(t *testing.T, a place) {
	for i := range 2 {
		none, other := netip.AddrPortFrom(clusterIPs(5)[i], 80), netip.AddrPortFrom(clusterIPs(1)[i], 81)
		for _, to := range []netip.AddrPort{none, other} {
			for _, network := range []string{"tcp", "udp"} {
				if got, err := asked(t, a, network, to); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("%s to %s: %q, %v; want it refused", network, to, got, err)
				}
			}
		}
	}
}

// An ended connection leaves both conntrack zones within seconds, and its port with it.
func endedConnections(t *testing.T, c cluster, a place) {
	seen := map[string]bool{} // by zone
	wait(t, labtest.Patience(t, 10*time.Second), func() string {
		if _, err := asked(t, a, "tcp", netip.AddrPortFrom(clusterIPs(2)[0], 80)); err != nil {
			return err.Error()
		}
		for _, zone := range []string{"40960", "45056"} {
			list := c.host(t, "node1").exec(t, "ovs-appctl dpctl/dump-conntrack -s zone="+zone)
			for line := range strings.Lines(list) {
				_, rest, ended := strings.Cut(line, "state=TIME_WAIT")
				if _, after, ok := strings.Cut(line, "timeout="); ended && ok {
					text, _, _ := strings.Cut(after, ",")
					left, err := strconv.Atoi(text)
					if seen[zone] = true; err != nil || left > 5 {
						t.Errorf("an ended connection of zone %s stays for %d more seconds, %v: %s%s", zone, left, err, line, rest)
					}
				}
			}
		}
		if len(seen) < 2 {
			return fmt.Sprintf("conntrack has ended connections of zones %v only", seen)
		}
		return ""
	})
}

// One client port may be used for a Service and for its endpoint at once.
func samePort(t *testing.T, a, b place) {
	for i := range 2 {
		via, err := call(t, a, "tcp", netip.AddrPortFrom(clusterIPs(1)[i], 80), 40000+i)
		must(t, 0, err)
		direct, err := call(t, a, "tcp", netip.AddrPortFrom(b.ips[i], 8080), 40000+i)
		must(t, 0, err)
		for _, conn := range []dialled{via, direct, via} {
			if got, err := conn.ask(t); got != "b "+a.ips[i].String() {
				t.Errorf("%s: %q, %v", conn.RemoteAddr(), got, err)
			}
		}
	}
}

// Connections survive changes of other endpoints, their own endpoint's leaving the Service, and a restart of the agent.
// Datagrams to an endpoint that has left go to another one.
func changesOfServices(t *testing.T, c cluster, a, b, remote place) {
	vip := netip.AddrPortFrom(clusterIPs(1)[0], 80)
	tcp, err := call(t, a, "tcp", vip, 0)
	must(t, 0, err)
	udp, err := call(t, a, "udp", vip, 0)
	must(t, 0, err)
	says := func(conn dialled, want string) string {
		if got, err := conn.ask(t); got != want {
			return fmt.Sprintf("%q, %v; want %q", got, err, want)
		}
		return ""
	}
	at := " " + a.ips[0].String()
	for _, conn := range []dialled{tcp, udp} {
		if wrong := says(conn, "b"+at); wrong != "" {
			t.Fatal(wrong)
		}
	}
	high, err := call(t, a, "tcp", netip.AddrPortFrom(clusterIPs(6)[0], 80), 0)
	must(t, 0, err)
	stop := make(chan struct{})
	talked := make(chan string)
	go func() { // continuously: to find a gap of some milliseconds
		for wrong := ""; ; {
			select {
			case <-stop:
				talked <- wrong
				return
			default:
				if wrong == "" {
					wrong = says(high, "c"+at)
				}
			}
		}
	}()
	before := c.flows(t, "node1")
	must(t, 0, c.AgentKill(labtest.Within(t, 5*time.Second), "node1"))
	if wrong := says(tcp, "b"+at); wrong != "" {
		t.Errorf("without an agent: %s", wrong)
	}
	must(t, 0, c.AgentStart(labtest.Within(t, 15*time.Second), "node1"))
	must(t, 0, c.WaitReady(labtest.Within(t, 30*time.Second), "node1"))
	if wrong := says(tcp, "b"+at); wrong != "" || c.flows(t, "node1") != before {
		t.Errorf("after a restart of the agent: %s; flows\n%s\nbefore\n%s", wrong, c.flows(t, "node1"), before)
	}
	close(stop)
	if wrong := <-talked; wrong != "" {
		t.Errorf("to a high port, over a restart of the agent: %s", wrong)
	}
	node := c.host(t, "node1")
	leavesLate(t, c, udp, at, b, remote)
	wait(t, labtest.Patience(t, 10*time.Second), func() string { return says(udp, "c"+at) })
	if wrong := says(tcp, "b"+at); wrong != "" {
		t.Errorf("the connection to an endpoint that has left: %s", wrong)
	}
	c.datapathFollows(t)
	if got, err := asked(t, a, "tcp", vip); got != "c"+at {
		t.Errorf("a new connection: %q, %v", got, err)
	}
	// Externally altered groups are restored. Until then connections may pass nevertheless: the datapath is revalidated
	// late.
	state := func() (groups, flows int) {
		return strings.Count(node.exec(t, "ovs-ofctl -O OpenFlow15 dump-groups br-int"), "group_id="),
			strings.Count(c.flows(t, "node1"), "table=2, priority=200,")
	}
	groups, flows := state()
	node.exec(t, "ovs-ofctl -O OpenFlow15 del-groups br-int")
	wait(t, labtest.Patience(t, 20*time.Second), func() string {
		if gotGroups, gotFlows := state(); gotGroups != groups || gotFlows != flows {
			return fmt.Sprintf("of %d groups and %d flows, %d and %d are back", groups, flows, gotGroups, gotFlows)
		}
		got, err := asked(t, a, "tcp", netip.AddrPortFrom(clusterIPs(3)[0], 80))
		if err == nil && !strings.HasSuffix(got, at) {
			err = errors.New(got)
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
}

// leavesLate replaces the endpoint of a client that keeps sending while the datapath is revalidated late, but within
// the time that the agent allows for it (staleFor in agent/apply). On a machine that is busier than that it is
// repeated.
func leavesLate(t *testing.T, c cluster, udp dialled, at string, b, remote place) {
	t.Helper()
	const leaves = 2800 * time.Millisecond // the agent flushes again no earlier than 3 s after the change
	node, vip := c.host(t, "node1"), clusterIPs(1)[0].String()
	hasB := func() (bool, string) {
		flows := node.exec(t, "ovs-ofctl dump-flows br-int udp,nw_dst="+vip)
		return strings.Contains(flows, b.ips[0].String()), flows
	}
	for range 5 {
		var begun time.Time
		wrong := ""
		late(t, node, func() {
			begun = time.Now()
			c.apply(t, serviceYAML("local", 1, "", 8080, remote))
			wait(t, labtest.Patience(t, 10*time.Second), func() string {
				if has, flows := hasB(); has {
					return flows
				}
				return ""
			})
			// The agent deletes this connection from conntrack, in two zones, and the datapath recreates it. An answer
			// in flight at that moment is lost: no entry matches it. On a machine that stalls, more answers are late.
			for answered := 0; answered < 10 && time.Since(begun) < leaves; {
				got, err := udp.askBy(t, time.Now().Add(300*time.Millisecond))
				if errors.Is(err, os.ErrDeadlineExceeded) {
					continue
				}
				if got != "b"+at {
					wrong = fmt.Sprintf("the datapath is to be late: %q, %v; want %q", got, err, "b"+at)
					return
				}
				answered++
				time.Sleep(10 * time.Millisecond)
			}
		})
		took := time.Since(begun)
		switch {
		case took >= leaves:
		case wrong != "":
			t.Fatal(wrong)
		default:
			return
		}
		t.Logf("this machine has taken %s: the datapath was later than the agent expects", took)
		c.apply(t, serviceYAML("local", 1, "", 8080, b))
		wait(t, labtest.Patience(t, 10*time.Second), func() string {
			got, err := udp.ask(t)
			if has, flows := hasB(); !has || got != "b"+at {
				return fmt.Sprintf("%q, %v; want %q; flows\n%s", got, err, "b"+at, flows)
			}
			return ""
		})
	}
	t.Fatal("this machine is too busy for a datapath that is less late than the agent expects")
}

// After a restart of ovs-vswitchd its groups and flows are back, also if the agent starts with it. On the kernel's
// datapath connections survive; on the userspace datapath conntrack is in the process.
func restartsOfServices(t *testing.T, c cluster, a place) {
	at := " " + a.ips[0].String()
	both := netip.AddrPortFrom(clusterIPs(3)[0], 80)
	for _, agent := range []bool{false, true} {
		open, err := call(t, a, "tcp", both, 0)
		must(t, 0, err)
		served, err := open.ask(t)
		must(t, 0, err)
		if agent {
			must(t, 0, c.AgentKill(labtest.Within(t, 5*time.Second), "node1"))
		}
		must(t, 0, c.OVSKill(labtest.Within(t, 10*time.Second), "node1", lab.Vswitchd))
		must(t, 0, c.OVSStart(labtest.Within(t, 20*time.Second), "node1", lab.Vswitchd))
		if agent {
			must(t, 0, c.AgentStart(labtest.Within(t, 15*time.Second), "node1"))
		}
		wait(t, labtest.Patience(t, 20*time.Second), func() string {
			if got, err := asked(t, a, "tcp", both); err != nil || !strings.HasSuffix(got, at) {
				return fmt.Sprintf("a new connection: %q, %v", got, err)
			}
			return ""
		})
		if c.Datapath() != vswitch.System {
			continue
		}
		if got, err := open.ask(t); got != served {
			t.Errorf("the agent starts as well: %v: a connection to %q is answered by %q, %v", agent, served, got, err)
		}
	}
}
