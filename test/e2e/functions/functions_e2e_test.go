package functions

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
	"github.com/fairlead-cni/fairlead/test/e2e/install"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// What users of Kubernetes expect of a network works with Fairlead, in both uplink modes, with both modes of kube-proxy
// and with two container runtimes, or the selected one.
func TestE2EFunctions(t *testing.T) {
	asked := rights{}
	for _, c := range []struct {
		uplink, proxy, runtime string
		values                 []string
	}{
		{"steer", bed.Nftables, "", install.Steer()},
		{"bridge", bed.IPTables, cmp.Or(os.Getenv(bed.RuntimeVariable), bed.Containerd23), install.Bridge()},
	} {
		t.Run(c.uplink+"/"+c.proxy, func(t *testing.T) {
			cl := functions{cluster.Start(t, bed.Options{Name: "functions-" + c.uplink, KubeProxy: c.proxy,
				Runtime: c.runtime, Audit: true}, c.values...)}
			defer func() { asked.add(t, cl.AuditLog()) }()
			t.Run("doctor", cl.doctor) // before addresses are reserved, whose owners the agent may not read
			t.Run("preflight", func(t *testing.T) { cl.preflight(t, c.uplink) })
			cl.apply(t, "testdata/functions.yaml")
			cl.Running(t, "client", 3)
			cl.Running(t, "web", 3)
			t.Run("Deployment", cl.pods)
			t.Run("ClusterIP", cl.clusterIP)
			t.Run("NodePort", cl.nodePort)
			t.Run("headless", cl.headless)
			t.Run("UDP", cl.dnsLike)
			t.Run("hostPort", cl.hostPort)
			t.Run("exec, logs, port-forward", cl.streams)
			t.Run("capture", cl.capture)
			if c.uplink == "bridge" { // which has tunnels
				t.Run("reach", cl.blocked)
			}
			t.Run("VLANs", cl.vlans)
			t.Run("StatefulSet", cl.sticky)
			t.Run("NetworkAttachmentDefinition", cl.secondary)
			t.Run("reboot", cl.reboot)
			if c.runtime != "" && c.runtime != bed.Containerd { // which calls neither STATUS nor GC
				t.Run("runtime", cl.runtime)
			}
			t.Run("drain and delete", cl.drain)
		})
	}
	t.Run("NodeIPAM", func(t *testing.T) { nodeIPAM(t, asked) })
	t.Run("rights", asked.compare)
}

// functions are the tests in one cluster.
type functions struct{ *cluster.Cluster }

func (c functions) apply(t *testing.T, file string) {
	t.Helper()
	manifests, err := os.ReadFile(file)
	cluster.Must(t, err)
	c.Apply(t, manifests)
}

// doctor checks that the command of docs/install.md finds nothing wrong. An agent's Pod has no permission to query
// other agents.
func (c functions) doctor(t *testing.T) {
	cluster.Eventually(t, func() error {
		out, err := c.Kubectl(t.Context(), "-n", "kube-system", "exec", "ds/fairlead-agent", "--", "fairleadctl", "doctor")
		if err != nil || strings.Contains(strings.Replace(out, "unknown: reach, of other nodes: their agents are queried", "", 1), "unknown") {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		return err
	})
}

// preflight checks what all agents report about their node's NIC, and about the loopback interface. In its Pod an agent
// sees the state of network managers in the node's /run.
func (c functions) preflight(t *testing.T, mode string) {
	var attached, none []string
	for _, node := range c.Nodes() {
		attached = append(attached, node+" eth0 "+mode+" ok")
		none = append(none, node+" lo "+mode+" cannot")
	}
	nodes := strings.Join(c.Nodes(), ", ")
	all := []string{"uplink", "preflight", "--all-nodes"}
	c.says(t, "", append(attached, "note: "+nodes+": it is already attached"), append(all, "--nic=eth[0-9]")...)
	c.says(t, "", attached, all...)
	none = append(none, "the NIC of "+nodes+" cannot be attached: it is the loopback interface")
	managed := "the NIC of node2 cannot be attached: systemd-networkd manages it"
	_, err := c.NodeExec(t.Context(), "node2", "sh", "-c",
		"mkdir -p /run/systemd/netif/links && echo ADMIN_STATE=configured > /run/systemd/netif/links/1")
	cluster.Must(t, err)
	if mode == "bridge" {
		none = append(none, managed)
	}
	out := c.says(t, "exit status 4", none, append(all, "--nic=lo")...)
	if mode == "steer" && strings.Contains(out, "manages it") || strings.Contains(out, "not known") {
		t.Errorf("what manages the NIC is known, and mode steer leaves it that:\n%s", out)
	}
	_, err = c.NodeExec(t.Context(), "node2", "rm", "-r", "/run/systemd/netif")
	cluster.Must(t, err)
}

// pods checks that pods of a Deployment, one on each node, have an address of each family in their node's podCIDRs;
// every node's client and the node itself reach them by both, and they see the client's address.
func (c functions) pods(t *testing.T) {
	webs := c.Running(t, "web", len(c.Nodes()))
	for _, p := range webs {
		node, err := c.API.CoreV1().Nodes().Get(t.Context(), p.Spec.NodeName, metav1.GetOptions{})
		cluster.Must(t, err)
		if len(p.Status.PodIPs) != 2 || len(node.Spec.PodCIDRs) != 2 {
			t.Fatalf("%s has %v, its node %v", p.Name, p.Status.PodIPs, node.Spec.PodCIDRs)
		}
		for i, cidr := range node.Spec.PodCIDRs {
			addr, err := netip.ParseAddr(p.Status.PodIPs[i].IP)
			cluster.Must(t, err)
			if !netip.MustParsePrefix(cidr).Contains(addr) {
				t.Errorf("%s is not of %s", addr, cidr)
			}
		}
	}
	for _, client := range c.Running(t, "client", len(c.Nodes())) {
		out := c.Get(t, client.Name, cluster.URLs("8080", cluster.Addrs(webs...)...)...)
		if err := seesOwn(client, out); err != nil {
			t.Error(err)
		}
		if count := strings.Count(out, "\n"); count != 2*len(webs) {
			t.Errorf("%d answers, want %d:\n%s", count, 2*len(webs), out)
		}
	}
}

// seesOwn returns an error if answers of servers, as Get returns them, name another client than this pod's own
// addresses.
func seesOwn(client corev1.Pod, answers string) error {
	for line := range strings.Lines(answers) { // NAME LOCAL REMOTE
		remote, err := netip.ParseAddrPort(strings.Fields(line)[2])
		if err != nil {
			return err
		}
		if !slices.Contains(cluster.Addrs(client), remote.Addr().String()) {
			return fmt.Errorf("%s sees %s, asked by %v", strings.Fields(line)[0], remote, cluster.Addrs(client))
		}
	}
	return nil
}

// clusterIP checks a ClusterIP from pods, in both families; all pods behind it answer, once kube-proxy or the agent has
// all endpoints.
func (c functions) clusterIP(t *testing.T) {
	c.viaService(t, func(corev1.Pod, string) error { return nil })
}

// viaService is clusterIP with a check of the answers to each client.
func (c functions) viaService(t *testing.T, check func(client corev1.Pod, answers string) error) {
	service, err := c.API.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	cluster.Must(t, err)
	if len(service.Spec.ClusterIPs) != 2 {
		t.Fatalf("ClusterIPs %v", service.Spec.ClusterIPs)
	}
	for _, client := range c.Running(t, "client", len(c.Nodes())) {
		for _, url := range cluster.URLs("80", service.Spec.ClusterIPs...) {
			cluster.Eventually(t, func() error {
				names := map[string]bool{}
				out, err := c.Tool(t.Context(), client.Name, append([]string{"get"}, slices.Repeat([]string{url}, 30)...)...)
				for line := range strings.Lines(out) {
					names[strings.Fields(line)[0]] = true
				}
				if err == nil && len(names) != len(c.Nodes()) {
					err = fmt.Errorf("%s from %s: 30 answers from %v, want %d pods", url, client.Spec.NodeName, names, len(c.Nodes()))
				}
				if err == nil {
					err = check(client, out)
				}
				return err
			})
		}
	}
}

// nodePort checks a NodePort from outside the cluster on every node, in both families.
func (c functions) nodePort(t *testing.T) {
	for n := range c.Nodes() {
		for _, a := range c.Underlay().NodeAddrs(n + 1) {
			url := cluster.URLs("30080", a.Addr().String())[0]
			cluster.Eventually(t, func() error { return c.Outside(t.Context(), url) })
		}
	}
}

// headless checks that the endpoints of a headless Service are the pods' addresses.
func (c functions) headless(t *testing.T) {
	cluster.Eventually(t, func() error {
		slices_, err := c.API.DiscoveryV1().EndpointSlices("default").List(t.Context(),
			metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web-headless"})
		if err != nil {
			return err
		}
		var got []string
		for _, s := range slices_.Items {
			for _, e := range s.Endpoints {
				got = append(got, e.Addresses...)
			}
		}
		want := cluster.Addrs(c.Running(t, "web", 3)...)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			return fmt.Errorf("endpoints %v, want %v", got, want)
		}
		return nil
	})
}

// dnsLike checks that UDP requests to ClusterIPs, each from its own port, are answered.
func (c functions) dnsLike(t *testing.T) {
	service, err := c.API.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	cluster.Must(t, err)
	for _, client := range c.Running(t, "client", len(c.Nodes())) {
		for _, ip := range service.Spec.ClusterIPs {
			cluster.Eventually(t, func() error {
				out, err := c.Tool(t.Context(), client.Name, "ask", net.JoinHostPort(ip, "53"), "who-is-there")
				if err == nil && !strings.HasSuffix(out, " who-is-there\n") {
					err = fmt.Errorf("answer %q", out)
				}
				return err
			})
		}
	}
}

// hostPort checks a host port from outside on the node's addresses, and from pods of other nodes.
func (c functions) hostPort(t *testing.T) {
	c.Running(t, "host-port", 1)
	var addrs []string
	for _, a := range c.Underlay().NodeAddrs(1) {
		addrs = append(addrs, a.Addr().String())
	}
	for _, url := range cluster.URLs("8088", addrs...) {
		cluster.Eventually(t, func() error { return c.Outside(t.Context(), url) })
	}
	for _, client := range c.Running(t, "client", 3) {
		if client.Spec.NodeName != "node1" {
			c.Get(t, client.Name, cluster.URLs("8088", addrs...)...)
		}
	}
}

// vlans checks that bridged pods of one VLAN reach each other on the underlay's segment, those of two VLANs by the
// underlay's router, routed pods and the host outside reach both, and the router sees the pods' own addresses.
func (c functions) vlans(t *testing.T) {
	ten, peer, twenty := c.Running(t, "vlan10", 1)[0], c.Running(t, "vlan10-peer", 1)[0], c.Running(t, "vlan20", 1)[0]
	if len(cluster.Addrs(ten)) != 2 || len(cluster.Addrs(peer)) != 2 || len(cluster.Addrs(twenty)) != 1 {
		t.Fatalf("addresses %v, %v, %v", cluster.Addrs(ten), cluster.Addrs(peer), cluster.Addrs(twenty))
	}
	for i, a := range cluster.Addrs(ten) {
		vlan := c.Underlay().Family.VLANGatewayAddrs(10)[i].Masked()
		if !vlan.Contains(netip.MustParseAddr(a)) {
			t.Errorf("%s is not in %s", a, vlan)
		}
	}
	c.Get(t, ten.Name, cluster.URLs("8080", cluster.Addrs(peer)...)...)
	out := c.Get(t, ten.Name, cluster.URLs("8080", cluster.Addrs(twenty)...)...)
	if !strings.Contains(out, " "+cluster.Addrs(ten)[0]+":") {
		t.Errorf("between VLANs: %q, want the pod's own address %s", out, cluster.Addrs(ten)[0])
	}
	all := cluster.URLs("8080", cluster.Addrs(ten, peer, twenty)...)
	for _, url := range all {
		cluster.Eventually(t, func() error { return c.Outside(t.Context(), url) })
	}
	for _, client := range c.Running(t, "client", 3) {
		c.Get(t, client.Name, all...)
	}
}

// sticky checks that deleted pods of a StatefulSet are recreated with their addresses, also on another node.
func (c functions) sticky(t *testing.T) {
	addrs := func() map[string]string {
		out := map[string]string{}
		for _, p := range c.Running(t, "sticky", 2) {
			out[p.Name] = strings.Join(cluster.Addrs(p), " ")
		}
		return out
	}
	before := addrs()
	old := c.Running(t, "sticky", 2)
	// The other node of the two that it may be on.
	c.Run(t, "cordon", old[0].Spec.NodeName)
	defer c.Run(t, "uncordon", old[0].Spec.NodeName)
	c.Run(t, "delete", "pod", old[0].Name)
	cluster.Eventually(t, func() error {
		p, err := c.API.CoreV1().Pods("default").Get(t.Context(), old[0].Name, metav1.GetOptions{})
		if err == nil && (p.UID == old[0].UID || p.Spec.NodeName == "") {
			err = fmt.Errorf("%s is not recreated", old[0].Name)
		}
		return err
	})
	if after := addrs(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("addresses %v, before %v", after, before)
	}
	now := c.Running(t, "sticky", 2)
	for _, p := range now {
		if p.Name == old[0].Name && p.Spec.NodeName == old[0].Spec.NodeName {
			t.Errorf("%s is on %s again: nothing is tried", p.Name, p.Spec.NodeName)
		}
		url := cluster.URLs("8080", cluster.Addrs(p)...)[0]
		cluster.Eventually(t, func() error { return c.Outside(t.Context(), url) })
	}
}

// reboot checks that a node recovers after a power failure with all its pods, bridged and routed.
func (c functions) reboot(t *testing.T) {
	const node = "node3"
	begun := time.Now()
	cluster.Must(t, c.Crash(t.Context(), node))
	cluster.Must(t, c.Boot(t.Context(), node))
	client := c.clientOn(t, "node1")
	// All pods of that node answer again, at their current addresses.
	cluster.Eventually(t, func() error {
		list, err := c.API.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{
			FieldSelector: "spec.nodeName=" + node, LabelSelector: "app in (web, vlan10-peer, vlan20)"})
		if err != nil {
			return err
		}
		urls := cluster.URLs("8080", cluster.Addrs(list.Items...)...)
		if len(list.Items) < 3 || len(urls) < 5 {
			return fmt.Errorf("%d pods with %d addresses on %s", len(list.Items), len(urls), node)
		}
		_, err = c.Tool(t.Context(), client, append([]string{"get"}, urls...)...)
		return err
	})
	t.Logf("from power failure to all pods reached: %.1f s", time.Since(begun).Seconds())
}

// drain checks that pods of a drained node move elsewhere and the others are not affected; then the node is removed
// from the cluster, and its peers remove its routes.
func (c functions) drain(t *testing.T) {
	const node = "node2"
	gone, err := c.API.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	cluster.Must(t, err)
	client := c.clientOn(t, "node1")
	c.Run(t, "scale", "deployment/web", "--replicas=2") // one on each node that stays
	begun := time.Now()
	c.Run(t, "drain", node, "--ignore-daemonsets", "--force", "--timeout=90s")
	t.Logf("drained after %.1f s", time.Since(begun).Seconds())
	for _, p := range c.Running(t, "web", 2) {
		if p.Spec.NodeName == node {
			t.Errorf("%s is on %s still", p.Name, node)
		}
	}
	cluster.Must(t, c.Crash(t.Context(), node))
	begun = time.Now()
	c.Run(t, "delete", "node", node)
	cluster.Eventually(t, func() error {
		for _, cidr := range gone.Spec.PodCIDRs {
			family := "-4"
			if strings.Contains(cidr, ":") {
				family = "-6"
			}
			out, err := c.NodeExec(t.Context(), "node1", "ip", family, "route", "show", "match", cidr, "proto", "102")
			if err != nil {
				return err
			}
			if out != "" {
				return fmt.Errorf("node1 has a route to the podCIDR of the node that is gone: %s", out)
			}
		}
		return nil
	})
	t.Logf("forgotten by its peers after %.1f s", time.Since(begun).Seconds())
	c.Get(t, client, cluster.URLs("8080", cluster.Addrs(c.Running(t, "web", 2)...)...)...)
}

// clientOn is the client's pod on a node.
func (c functions) clientOn(t *testing.T, node string) string {
	t.Helper()
	pods := c.Running(t, "client", 3)
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node })
	if i < 0 {
		t.Fatalf("no client on %s", node)
	}
	return pods[i].Name
}

// streams checks kubectl exec, logs and port-forward, which kubelet serves.
func (c functions) streams(t *testing.T) {
	web := c.Running(t, "web", 3)[0]
	if out := c.Run(t, "exec", web.Name, "--", "/e2e-tool", "show", "/etc/hostname"); strings.TrimSpace(out) != web.Name {
		t.Errorf("exec: %q", out)
	}
	c.Run(t, "run", "talker", "--image="+bed.TestImage, "--image-pull-policy=Never", "--restart=Never",
		"--command", "--", "/e2e-tool", "show", "/etc/hostname")
	cluster.Eventually(t, func() error {
		out, err := c.Kubectl(t.Context(), "logs", "talker")
		if err == nil && strings.TrimSpace(out) != "talker" {
			err = fmt.Errorf("logs: %q", out)
		}
		return err
	})
	c.portForward(t, web.Name)
}

// capture checks that fairleadctl captures in the agents' pods of two nodes, through the API server and kubelets: in
// one of several attempts, since a busy machine may send nothing during the five seconds of one.
func (c functions) capture(t *testing.T) {
	clients, webs := c.Running(t, "client", 3), c.Running(t, "web", 3)
	client := clients[0]
	web := webs[slices.IndexFunc(webs, func(p corev1.Pod) bool { return p.Spec.NodeName != client.Spec.NodeName })]
	cluster.Eventually(t, func() error { return c.captured(t, client, web) })
}

// captured returns an error if a capture has no packets of one of the pods, or of one of their nodes' NICs.
func (c functions) captured(t *testing.T, client, web corev1.Pod) error {
	t.Helper()
	file := "/tmp/" + client.Name + ".pcapng"
	ended := make(chan struct{})
	var out string
	var err error
	go func() {
		defer close(ended)
		out, err = c.Fairleadctl(t, "capture", client.Name, "--to="+web.Name, "-w", file, "--duration=5s", "--quiet", "-o", "json")
	}()
	for running := true; running; {
		select {
		case <-ended:
			running = false
		default:
			c.Get(t, client.Name, cluster.URLs("8080", cluster.Addrs(web)...)...)
		}
	}
	cluster.Must(t, err)
	var summary struct {
		Ended      string
		Interfaces []struct {
			Name    string
			Packets int
		}
	}
	cluster.Must(t, json.Unmarshal([]byte(out), &summary))
	seen := map[string]bool{}
	for _, i := range summary.Interfaces {
		seen[i.Name] = i.Packets > 0
	}
	_, err = c.NodeExec(t.Context(), underlay.ControlPlane, "rm", file)
	cluster.Must(t, err)
	for _, name := range []string{"default/" + client.Name + "@" + client.Spec.NodeName, "default/" + web.Name + "@" + web.Spec.NodeName,
		"eth0@" + client.Spec.NodeName, "eth0@" + web.Spec.NodeName} {
		if !seen[name] {
			return fmt.Errorf("no packets of %s:\n%s", name, out)
		}
	}
	return nil
}

// portForward reaches a pod's port through the API server and kubelet.
func (c functions) portForward(t *testing.T, pod string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.Kubectl(ctx, "port-forward", "pod/"+pod, "18080:8080")
		ended <- err
	}()
	cluster.Eventually(t, func() error {
		out, err := c.NodeExec(ctx, underlay.ControlPlane, bed.Tool, "get", "http://127.0.0.1:18080/")
		if err == nil && !strings.HasPrefix(out, pod+" ") {
			err = fmt.Errorf("answer %q, want %s's", out, pod)
		}
		return err
	})
	cancel()
	<-ended
}
