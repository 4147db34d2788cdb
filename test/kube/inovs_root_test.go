package kube

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

// withConfig restarts a node's agent with additional lines of config.
func (b *bed) withConfig(t *testing.T, node, more string) (back func()) {
	t.Helper()
	h, err := b.Host(node)
	must(t, err)
	file := h.Private("/etc/fairlead/agent.conf")
	before, err := os.ReadFile(file)
	must(t, err)
	restart := func(config []byte) {
		t.Helper()
		ctx := labtest.Within(t, time.Minute)
		must(t, os.WriteFile(file, config, 0o600))
		must(t, b.AgentStop(ctx, node))
		must(t, b.AgentStart(ctx, node))
		must(t, b.WaitReady(ctx, node))
	}
	t.Cleanup(func() { // of a test that failed midway
		if now, err := os.ReadFile(file); err != nil || string(now) == string(before) {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		must(t, os.WriteFile(file, before, 0o600))
		must(t, b.AgentKill(ctx, node))
		must(t, b.AgentStart(ctx, node))
		must(t, b.WaitReady(ctx, node))
	})
	restart(append(slices.Clone(before), more...))
	return func() { t.Helper(); restart(before) }
}

// inSwitch returns the sorted flows of br-int on node1, without counters, and its groups.
func (b *bed) inSwitch(t *testing.T) (flows, groups string) {
	t.Helper()
	ctx := labtest.Within(t, 20*time.Second)
	flows, err := b.NodeExec(ctx, "node1", "sh", "-c", "ovs-ofctl --no-stats dump-flows br-int | grep -v priority=65535,pkt_mark= | sort")
	must(t, err)
	groups, err = b.NodeExec(ctx, "node1", "sh", "-c", "ovs-ofctl -OOpenFlow15 dump-groups br-int | grep group_id || true")
	must(t, err)
	return flows, groups
}

// serviceYAML is a Service whose endpoints are the pods with that value of the label app.
func serviceYAML(name, spec, app string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: %s}\n"+
		"spec: {%s selector: {app: %s}, ports: [{name: http, port: 80, targetPort: 8080}, {name: open, port: 81, targetPort: 8081}, "+
		"{name: dns, port: 53, targetPort: 5353, protocol: UDP}]}\n",
		name, spec, app)
}

// On a node that changes from services: host to ovs, fairleadctl reports where connections are sent, and why not
// elsewhere. When the node changes back, Open vSwitch has its previous state: no group and no flow of Services is left.
// Connections that were open hang, new ones work.
func TestRootServicesInOpenVSwitch(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "s1@node1", "s2@node2")
	for _, name := range []string{"s1", "s2"} {
		b.pod(t, name).serve(t, name, new(atomic.Int32))
	}
	toOVS := b.withConfig(t, "node1", "services: host\n")
	var before string
	wait(t, 30*time.Second, func() (groups string) {
		before, groups = b.inSwitch(t)
		return groups
	})
	toOVS()
	_, err := b.Apply("test", []byte(serviceYAML("both", "", "s")+serviceYAML("near", "ipFamilyPolicy: RequireDualStack, internalTrafficPolicy: Local,", "s")+
		serviceYAML("kept", "sessionAffinity: ClientIP,", "s")+serviceYAML("none", "", "nothing")))
	must(t, err)
	near, kept, both := b.clusterIPs(t, "near")[0], b.clusterIPs(t, "kept")[0], b.clusterIPs(t, "both")[0]
	a, s1 := b.pod(t, "a"), b.pod(t, "s1").ips[0].String()
	s2 := b.pod(t, "s2").ips[0].String()

	admin := b.adminHere(t, "node1")
	says := func(words []string, args ...string) { t.Helper(); b.says(t, admin, 0, words, args...) }
	says([]string{"Service default/both on node node1", s1 + ":8080", "node2  yes", both + ":81/TCP"}, "service", "both")
	says([]string{s2 + ":8080", "node1  yes", "no: not on this node (internalTrafficPolicy: Local)"}, "service", "near")
	says([]string{"no: no running Pod has the labels of its selector, app=nothing"}, "service", "none")
	b.says(t, admin, 1, []string{"there is no Service default/absent"}, "service", "absent")

	says([]string{"endpoints: " + s1 + ":8080", "chosen: " + s1 + ":8080\n", "the endpoint is " + s1 + ":8080",
		"output to pod default/s1"}, "trace", "a", "near:http")
	says([]string{"no running Pod has the labels of its selector, app=nothing. The node refuses it",
		"output to the gateway"}, "trace", "a", "none:80")
	says([]string{"chosen: for each connection separately", "by a hash of each connection"}, "trace", "a", "both:80")
	says([]string{"which the pod then keeps (session affinity)"}, "trace", "a", "kept:80")
	b.says(t, "/nonexistent", 0, []string{"endpoints: " + s1 + ":8080"}, "trace", "a", near+":80")
	says([]string{"chosen: " + s1 + ":5353\n", "output to pod default/s1"}, "trace", "a", "near:dns/UDP")
	six := b.clusterIPs(t, "near")[1]
	b.says(t, "/nonexistent", 0, []string{"chosen: [" + b.pod(t, "s1").ips[1].String() + "]:8080\n", "output to pod default/s1"},
		"trace", "a", "["+six+"]:80")
	b.says(t, "/nonexistent", 0, []string{"chosen: [" + b.pod(t, "s1").ips[1].String() + "]:5353\n", "output to pod default/s1"},
		"trace", "a", "["+six+"]:53/UDP")
	b.says(t, "/nonexistent", 1, []string{"without it, name a ClusterIP"}, "trace", "a", "near:80")
	b.says(t, admin, 1, []string{"has no port 82/TCP", near + ":80/TCP"}, "trace", "a", "near:82")
	b.says(t, admin, 1, []string{"pod default/s2 is on node node2"}, "trace", "s2", "near:80")
	if _, err := call(a.do, kept); err != nil {
		t.Fatal(err)
	}
	says([]string{"which the pod has had before (session affinity)", "in conntrack: 1 connection of this pod to "}, "trace", "a", "kept:80")

	b.examined(t, admin)
	open := b.open(t, a, "s1", near)
	if err := open(time.Minute); err != nil {
		t.Errorf("through Open vSwitch: %v", err)
	}
	b.withConfig(t, "node1", "services: host\n")
	wait(t, 30*time.Second, func() string {
		after, groups := b.inSwitch(t)
		if groups != "" || after != before {
			return fmt.Sprintf("groups: %s\n%s", groups, differences(before, after))
		}
		return ""
	})
	wait(t, 30*time.Second, func() string {
		if who, err := call(a.do, near); err != nil || who != "s1" {
			return fmt.Sprintf("%q, %v", who, err)
		}
		return ""
	})
	b.datapathFollows(t, "node1")
	if err := open(3 * time.Second); err == nil {
		t.Error("a connection that Open vSwitch had translated goes on with services: host: docs/services.md says that it hangs")
	}
	says([]string{"note: kube-proxy translates on this node", s1 + ":8080"}, "service", "both")
	says([]string{"with services: host, Open vSwitch translates nothing", "output to the gateway"}, "trace", "a", "both:80")
}

// examined checks doctor's findings about Services: none, until an endpoint is on a node that does not exist, and until
// conntrack is full.
func (b *bed) examined(t *testing.T, admin string) {
	t.Helper()
	b.says(t, admin, 0, []string{"services  ok"}, "doctor", "services")
	_, err := b.Apply("test", []byte("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
		"metadata: {name: stray, labels: {kubernetes.io/service-name: none}}\naddressType: IPv4\n"+
		"ports: [{name: http, port: 8080}]\nendpoints: [{addresses: [10.77.99.2], nodeName: node99}]\n"))
	must(t, err)
	b.says(t, admin, 3, []string{"services: endpoints-nowhere", "1 endpoint of a Service is on nodes that do not exist",
		"10.77.99.2 of default/none, on node node99"}, "doctor", "services")
	must(t, b.client.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), "stray", metav1.DeleteOptions{}))
	limit := func(entries string) {
		_, err := b.NodeExec(context.Background(), "node1", "ovs-appctl", "dpctl/ct-set-maxconns", entries)
		must(t, err)
	}
	limit("1")
	t.Cleanup(func() { limit("3000000") })
	b.says(t, admin, 3, []string{"services: conntrack-full", "the userspace datapath's conntrack has ", "of at most 1 entries"},
		"doctor", "services")
	limit("3000000")
}

// differences are the lines that only one of two texts has.
func differences(before, after string) (out string) {
	old, now := strings.Split(before, "\n"), strings.Split(after, "\n")
	for _, l := range now {
		if !slices.Contains(old, l) {
			out += "more: " + l + "\n"
		}
	}
	for _, l := range old {
		if !slices.Contains(now, l) {
			out += "less: " + l + "\n"
		}
	}
	return out
}

// open connects from a pod to port 81 of a Service, where pod to echoes what it reads. The returned function reports
// whether it still does, within a limit.
func (b *bed) open(t *testing.T, from pod, to, vip string) (echoes func(limit time.Duration) error) {
	t.Helper()
	var listener net.Listener
	must(t, b.pod(t, to).do(func() (err error) {
		listener, err = net.Listen("tcp", ":8081")
		return err
	}))
	t.Cleanup(func() { listener.Close() })
	go func() {
		if conn, err := listener.Accept(); err == nil {
			t.Cleanup(func() { conn.Close() })
			_, _ = io.Copy(conn, conn)
		}
	}()
	var conn net.Conn
	must(t, from.do(func() (err error) {
		conn, err = net.DialTimeout("tcp", net.JoinHostPort(vip, "81"), time.Minute)
		return err
	}))
	t.Cleanup(func() { conn.Close() })
	return func(limit time.Duration) error {
		if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
			return err
		}
		if _, err := conn.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, make([]byte, 1))
		return err
	}
}
