package bench

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
)

// translator is what translates ClusterIPs for the pods of one node.
type translator struct {
	name, services string
	proxy          string // kube-proxy's mode; empty without kube-proxy
}

// translators are those of node1, node2 and node3. node4 has an endpoint for all of them.
func translators() []translator {
	return []translator{{"Open vSwitch", "ovs", ""}, {"kube-proxy, iptables", "host", "iptables"},
		{"kube-proxy, nftables", "host", "nftables"}}
}

// way is a path from a client to a server.
type way struct {
	name string
	from end
	to   string
}

// translate configures the nodes, one for each translator, and adds a client and an endpoint to each, and one endpoint
// to the last node.
func (x *bed) translate(b *testing.B) {
	b.Helper()
	plane, err := x.Plane()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	must(err)
	manifests := []string{podOn("across", x.Nodes()[len(translators())])}
	for i, t := range translators() {
		node := x.Nodes()[i]
		h, err := x.Host(node)
		must(err)
		file := h.Private("/etc/fairlead/agent.conf")
		config, err := os.ReadFile(file)
		must(err)
		must(os.WriteFile(file, append(config, "services: "+t.services+"\n"...), 0o600))
		must(x.AgentStop(b.Context(), node))
		must(x.AgentStart(b.Context(), node))
		must(x.WaitReady(b.Context(), node))
		if t.proxy != "" {
			proxy, err := x.KubeProxy(node)
			must(err)
			must(plane.StartKubeProxy(proxy, t.proxy))
		}
		manifests = append(manifests, podOn(fmt.Sprint("client", i), node), podOn(fmt.Sprint("beside", i), node))
	}
	_, err = x.Apply("pods", []byte(strings.Join(manifests, "---\n")))
	must(err)
	must(x.WaitPods(b.Context()))
}

func podOn(name, node string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\n"+
		"spec: {nodeName: %s, containers: [{name: main, image: none}]}\n", name, node)
}

// endpointOf is the pod behind the Service that the client of a translator uses, and its ClusterIP.
func endpointOf(i int, where string) (pod, vip string) {
	if where == "one node" {
		return fmt.Sprint("beside", i), fmt.Sprint("10.96.0.", 100+i)
	}
	return "across", "10.96.0.200"
}

// waysTo are the paths to an endpoint on the client's node, or on the last one: one for each translator, through its
// Service, then the direct ones of the first two clients. Each has been verified with a connection, and takes the
// expected path.
func (x *bed) waysTo(b *testing.B, where string) (ways []way) {
	b.Helper()
	var direct []way
	served := map[string]bool{}
	for i, t := range translators() {
		pod, vip := endpointOf(i, where)
		from, to := x.endOf(b, fmt.Sprint("client", i)), x.endOf(b, pod)
		if !served[pod] {
			serve(b, to)
			if _, err := x.Apply(pod+"-service", serviceManifest(pod, vip, to.addr)); err != nil {
				b.Fatal(err)
			}
		}
		served[pod] = true
		ways = append(ways, way{t.name, from, net.JoinHostPort(vip, "80")})
		direct = append(direct, way{"direct", from, net.JoinHostPort(to.addr, "8080")})
	}
	ways = append(ways, direct[:2]...)
	for i, w := range ways {
		known(b, w.from, w.to)
		own := i == 0 || w.name == "direct" // kube-proxy's packets come from the gateway
		if seen := clientSeen(b, w); (seen == w.from.addr) != own {
			b.Fatalf("%s: the endpoint sees %s, its client is %s", w.name, seen, w.from.addr)
		}
	}
	return ways
}

// clientSeen is the client address that the endpoint sees.
func clientSeen(b *testing.B, w way) string {
	b.Helper()
	conn, err := dial(w.from, w.to)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, "from"); err != nil {
		b.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	host, _, err := net.SplitHostPort(strings.TrimSpace(line))
	if err != nil {
		b.Fatal(err)
	}
	return host
}

// quiet stops what forwarding packets does not need, so that nothing else is measured: agents, kube-proxies, the
// control plane.
func (x *bed) quiet(b *testing.B) {
	b.Helper()
	plane, err := x.Plane()
	for _, node := range x.Nodes() {
		if err == nil {
			err = x.AgentStop(b.Context(), node)
		}
		if err == nil {
			err = x.KubeProxyStop(b.Context(), node)
		}
	}
	for _, part := range slices.Backward(controlplane.Parts()) {
		if err == nil {
			err = plane.Stop(b.Context(), part)
		}
	}
	if err != nil {
		b.Fatal(err)
	}
}
