package main

import (
	"context"
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
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/e2e/install"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// What users of Kubernetes expect of a network works over Fairlead, in both uplink modes and beside kube-proxy in both
// of its modes.
func TestE2EFunctions(t *testing.T) {
	for _, c := range []struct {
		uplink, proxy string
		values        []string
	}{
		{"steer", bed.Nftables, install.Steer()},
		{"bridge", bed.IPTables, install.Bridge()},
	} {
		t.Run(c.uplink+"/"+c.proxy, func(t *testing.T) {
			cl := start(t, "functions-"+c.uplink, c.proxy, c.values)
			cl.apply(t, "testdata/functions.yaml")
			cl.running(t, "client", 3)
			cl.running(t, "web", 3)
			t.Run("Deployment", cl.pods)
			t.Run("ClusterIP", cl.clusterIP)
			t.Run("NodePort", cl.nodePort)
			t.Run("headless", cl.headless)
			t.Run("UDP", cl.dnsLike)
			t.Run("hostPort", cl.hostPort)
			t.Run("exec, logs, port-forward", cl.streams)
			t.Run("VLANs", cl.vlans)
			t.Run("StatefulSet", cl.sticky)
			t.Run("NetworkAttachmentDefinition", cl.secondary)
			t.Run("reboot", cl.reboot)
			t.Run("drain and delete", cl.drain)
		})
	}
}

// patience is how long a thing may take to come true on a busy machine.
const patience = 2 * time.Minute

// cluster is a bed with Fairlead in it.
type cluster struct {
	*bed.Bed
	client *kubernetes.Clientset
}

// start makes a cluster that ends with the test, installs Fairlead and waits until all nodes are Ready.
func start(t *testing.T, name, proxy string, values []string) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a real cluster needs root")
	}
	archive, err := install.Image()
	must(t, err)
	b, err := bed.Up(t.Context(), bed.Options{Name: name, Replace: true, KubeProxy: proxy, Images: []string{archive}})
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			tell(t, b)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		must(t, b.Down(ctx))
	})
	client, err := b.Client()
	must(t, err)
	begun := time.Now()
	must(t, install.Apply(t.Context(), b, values...))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, b.WaitReady(ctx))
	t.Logf("from apply to 3 nodes Ready: %.1f s", time.Since(begun).Seconds())
	return &cluster{b, client}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually repeats f until it returns nil.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	for limit := time.Now().Add(patience); ; time.Sleep(300 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(limit) {
			t.Fatal(err)
		}
	}
}

// tell logs what a failed cluster has to say.
func tell(t *testing.T, b *bed.Bed) {
	for _, args := range [][]string{
		{"get", "nodes,pods", "-A", "-o", "wide"},
		{"get", "events", "-A", "--field-selector=type=Warning"},
		{"logs", "-n", "kube-system", "-l", "app.kubernetes.io/name=fairlead-agent", "--tail=30", "--prefix"},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		out, err := b.Kubectl(ctx, args...)
		cancel()
		t.Logf("%v, %v\n%s", args, err, out)
	}
}

func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := c.Kubectl(ctx, args...)
	must(t, err)
	return out
}

func (c *cluster) apply(t *testing.T, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	// The policy of IPPools is new: it is asked a moment later.
	eventually(t, func() error {
		_, err := c.KubectlStdin(t.Context(), data, "apply", "-f", "-")
		return err
	})
}

// running waits until that many pods of an app are ready, and returns them.
func (c *cluster) running(t *testing.T, app string, count int) (ready []corev1.Pod) {
	t.Helper()
	eventually(t, func() error {
		ready = nil
		list, err := c.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return err
		}
		for _, p := range list.Items {
			is := slices.ContainsFunc(p.Status.Conditions, func(s corev1.PodCondition) bool {
				return s.Type == corev1.PodReady && s.Status == corev1.ConditionTrue
			})
			if is && p.DeletionTimestamp == nil {
				ready = append(ready, p)
			}
		}
		if len(ready) != count {
			return fmt.Errorf("%d of %d pods of %s are ready", len(ready), count, app)
		}
		return nil
	})
	return ready
}

// tool runs e2e-tool in a pod.
func (c *cluster) tool(ctx context.Context, pod string, args ...string) (string, error) {
	return c.Kubectl(ctx, append([]string{"exec", pod, "--", "/e2e-tool"}, args...)...)
}

// get asks URLs from a pod, each until it answers.
func (c *cluster) get(t *testing.T, pod string, urls ...string) (out string) {
	t.Helper()
	eventually(t, func() (err error) {
		out, err = c.tool(t.Context(), pod, append([]string{"get"}, urls...)...)
		return err
	})
	return out
}

func urlsOf(port string, addrs ...string) (urls []string) {
	for _, a := range addrs {
		urls = append(urls, "http://"+net.JoinHostPort(a, port)+"/")
	}
	return urls
}

func addrsOf(pods ...corev1.Pod) (addrs []string) {
	for _, p := range pods {
		for _, ip := range p.Status.PodIPs {
			addrs = append(addrs, ip.IP)
		}
	}
	return addrs
}

// pods of a Deployment, one on each node, have an address of each family in their node's podCIDRs; every node's client
// and the node itself reach them by both, and they see who asks.
func (c *cluster) pods(t *testing.T) {
	webs := c.running(t, "web", 3)
	for _, p := range webs {
		node, err := c.client.CoreV1().Nodes().Get(t.Context(), p.Spec.NodeName, metav1.GetOptions{})
		must(t, err)
		if len(p.Status.PodIPs) != 2 || len(node.Spec.PodCIDRs) != 2 {
			t.Fatalf("%s has %v, its node %v", p.Name, p.Status.PodIPs, node.Spec.PodCIDRs)
		}
		for i, cidr := range node.Spec.PodCIDRs {
			addr, err := netip.ParseAddr(p.Status.PodIPs[i].IP)
			must(t, err)
			if !netip.MustParsePrefix(cidr).Contains(addr) {
				t.Errorf("%s is not of %s", addr, cidr)
			}
		}
	}
	for _, client := range c.running(t, "client", 3) {
		out := c.get(t, client.Name, urlsOf("8080", addrsOf(webs...)...)...)
		for line := range strings.Lines(out) { // NAME LOCAL REMOTE
			remote, err := netip.ParseAddrPort(strings.Fields(line)[2])
			must(t, err)
			if !slices.Contains(addrsOf(client), remote.Addr().String()) {
				t.Errorf("%s sees %s, asked by %v", strings.Fields(line)[0], remote, addrsOf(client))
			}
		}
		if count := strings.Count(out, "\n"); count != 6 {
			t.Errorf("%d answers, want 6:\n%s", count, out)
		}
	}
}

// clusterIP is reached from pods, in both families; all pods behind it answer.
func (c *cluster) clusterIP(t *testing.T) {
	service, err := c.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	must(t, err)
	if len(service.Spec.ClusterIPs) != 2 {
		t.Fatalf("ClusterIPs %v", service.Spec.ClusterIPs)
	}
	for _, client := range c.running(t, "client", 3) {
		for _, url := range urlsOf("80", service.Spec.ClusterIPs...) {
			names := map[string]bool{}
			out := c.get(t, client.Name, slices.Repeat([]string{url}, 30)...)
			for line := range strings.Lines(out) {
				names[strings.Fields(line)[0]] = true
			}
			if len(names) != 3 {
				t.Errorf("%s from %s: 30 answers from %v, want 3 pods", url, client.Spec.NodeName, names)
			}
		}
	}
}

// nodePort is reached from outside the cluster on every node, in both families.
func (c *cluster) nodePort(t *testing.T) {
	for n := range c.Nodes() {
		for _, a := range c.Underlay().NodeAddrs(n + 1) {
			url := urlsOf("30080", a.Addr().String())[0]
			eventually(t, func() error { return c.outside(t.Context(), url) })
		}
	}
}

// outside asks a URL from the host beyond the router.
func (c *cluster) outside(ctx context.Context, url string) error {
	_, err := c.NodeExec(ctx, underlay.Outside, bed.Tool, "get", url)
	return err
}

// headless has the pods' own addresses behind it.
func (c *cluster) headless(t *testing.T) {
	eventually(t, func() error {
		slices_, err := c.client.DiscoveryV1().EndpointSlices("default").List(t.Context(),
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
		want := addrsOf(c.running(t, "web", 3)...)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			return fmt.Errorf("endpoints %v, want %v", got, want)
		}
		return nil
	})
}

// dnsLike: a UDP question to a ClusterIP, each from a port of its own, has one answer.
func (c *cluster) dnsLike(t *testing.T) {
	service, err := c.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	must(t, err)
	for _, client := range c.running(t, "client", 3) {
		for _, ip := range service.Spec.ClusterIPs {
			eventually(t, func() error {
				out, err := c.tool(t.Context(), client.Name, "ask", net.JoinHostPort(ip, "53"), "who-is-there")
				if err == nil && !strings.HasSuffix(out, " who-is-there\n") {
					err = fmt.Errorf("answer %q", out)
				}
				return err
			})
		}
	}
}

// hostPort is reached from outside on the node's addresses, and from pods of other nodes.
func (c *cluster) hostPort(t *testing.T) {
	c.running(t, "host-port", 1)
	var addrs []string
	for _, a := range c.Underlay().NodeAddrs(1) {
		addrs = append(addrs, a.Addr().String())
	}
	for _, url := range urlsOf("8088", addrs...) {
		eventually(t, func() error { return c.outside(t.Context(), url) })
	}
	for _, client := range c.running(t, "client", 3) {
		if client.Spec.NodeName != "node1" {
			c.get(t, client.Name, urlsOf("8088", addrs...)...)
		}
	}
}

// vlans: bridged pods of one VLAN reach each other on the wire, those of two by the underlay's router, routed pods and
// the host outside reach both, and the router sees the pods' own addresses.
func (c *cluster) vlans(t *testing.T) {
	ten, peer, twenty := c.running(t, "vlan10", 1)[0], c.running(t, "vlan10-peer", 1)[0], c.running(t, "vlan20", 1)[0]
	if len(addrsOf(ten)) != 2 || len(addrsOf(peer)) != 2 || len(addrsOf(twenty)) != 1 {
		t.Fatalf("addresses %v, %v, %v", addrsOf(ten), addrsOf(peer), addrsOf(twenty))
	}
	for i, a := range addrsOf(ten) {
		vlan := c.Underlay().Family.VLANGatewayAddrs(10)[i].Masked()
		if !vlan.Contains(netip.MustParseAddr(a)) {
			t.Errorf("%s is not in %s", a, vlan)
		}
	}
	c.get(t, ten.Name, urlsOf("8080", addrsOf(peer)...)...)
	out := c.get(t, ten.Name, urlsOf("8080", addrsOf(twenty)...)...)
	if !strings.Contains(out, " "+addrsOf(ten)[0]+":") {
		t.Errorf("between VLANs: %q, want the pod's own address %s", out, addrsOf(ten)[0])
	}
	all := urlsOf("8080", addrsOf(ten, peer, twenty)...)
	for _, url := range all {
		eventually(t, func() error { return c.outside(t.Context(), url) })
	}
	for _, client := range c.running(t, "client", 3) {
		c.get(t, client.Name, all...)
	}
}

// sticky: pods of a StatefulSet that are deleted come back with their addresses, also on another node.
func (c *cluster) sticky(t *testing.T) {
	addrs := func() map[string]string {
		out := map[string]string{}
		for _, p := range c.running(t, "sticky", 2) {
			out[p.Name] = strings.Join(addrsOf(p), " ")
		}
		return out
	}
	before := addrs()
	old := c.running(t, "sticky", 2)
	// The other node of the two that it may be on.
	c.kubectl(t, "cordon", old[0].Spec.NodeName)
	defer c.kubectl(t, "uncordon", old[0].Spec.NodeName)
	c.kubectl(t, "delete", "pod", old[0].Name)
	eventually(t, func() error {
		p, err := c.client.CoreV1().Pods("default").Get(t.Context(), old[0].Name, metav1.GetOptions{})
		if err == nil && (p.UID == old[0].UID || p.Spec.NodeName == "") {
			err = fmt.Errorf("%s is not made anew", old[0].Name)
		}
		return err
	})
	if after := addrs(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("addresses %v, before %v", after, before)
	}
	now := c.running(t, "sticky", 2)
	for _, p := range now {
		if p.Name == old[0].Name && p.Spec.NodeName == old[0].Spec.NodeName {
			t.Errorf("%s is on %s again: nothing is tried", p.Name, p.Spec.NodeName)
		}
		url := urlsOf("8080", addrsOf(p)...)[0]
		eventually(t, func() error { return c.outside(t.Context(), url) })
	}
}

// reboot: a node that lost power comes back with all its pods, bridged and routed.
func (c *cluster) reboot(t *testing.T) {
	const node = "node3"
	begun := time.Now()
	must(t, c.Crash(t.Context(), node))
	must(t, c.Boot(t.Context(), node))
	var client string
	for _, p := range c.running(t, "client", 3) {
		if p.Spec.NodeName == "node1" {
			client = p.Name
		}
	}
	// All pods of that node answer again, at what addresses they now have.
	eventually(t, func() error {
		list, err := c.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{
			FieldSelector: "spec.nodeName=" + node, LabelSelector: "app in (web, vlan10-peer, vlan20)"})
		if err != nil {
			return err
		}
		urls := urlsOf("8080", addrsOf(list.Items...)...)
		if len(list.Items) < 3 || len(urls) < 5 {
			return fmt.Errorf("%d pods with %d addresses on %s", len(list.Items), len(urls), node)
		}
		_, err = c.tool(t.Context(), client, append([]string{"get"}, urls...)...)
		return err
	})
	t.Logf("from power failure to all pods reached: %.1f s", time.Since(begun).Seconds())
}

// drain: pods of a node that is drained go elsewhere, and the others go on; then the node is taken out of the cluster,
// and its peers forget it.
func (c *cluster) drain(t *testing.T) {
	const node = "node2"
	gone, err := c.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	must(t, err)
	c.kubectl(t, "scale", "deployment/web", "--replicas=2") // one on each node that stays
	c.kubectl(t, "drain", node, "--ignore-daemonsets", "--force", "--timeout=90s")
	for _, p := range c.running(t, "web", 2) {
		if p.Spec.NodeName == node {
			t.Errorf("%s is on %s still", p.Name, node)
		}
	}
	must(t, c.Crash(t.Context(), node))
	c.kubectl(t, "delete", "node", node)
	eventually(t, func() error {
		for _, cidr := range gone.Spec.PodCIDRs {
			family := "-4"
			if strings.Contains(cidr, ":") {
				family = "-6"
			}
			out, err := c.NodeExec(t.Context(), "node1", "ip", family, "route", "show", cidr)
			if err != nil {
				return err
			}
			if out != "" {
				return fmt.Errorf("node1 has a route to the podCIDR of the node that is gone: %s", out)
			}
		}
		return nil
	})
	var client string
	for _, p := range c.running(t, "client", 2) {
		client = p.Name
	}
	c.get(t, client, urlsOf("8080", addrsOf(c.running(t, "web", 2)...)...)...)
}

// streams: kubelet's ways into a pod.
func (c *cluster) streams(t *testing.T) {
	web := c.running(t, "web", 3)[0]
	if out := c.kubectl(t, "exec", web.Name, "--", "/e2e-tool", "show", "/etc/hostname"); strings.TrimSpace(out) != web.Name {
		t.Errorf("exec: %q", out)
	}
	c.kubectl(t, "run", "talker", "--image="+bed.TestImage, "--image-pull-policy=Never", "--restart=Never",
		"--command", "--", "/e2e-tool", "show", "/etc/hostname")
	eventually(t, func() error {
		out, err := c.Kubectl(t.Context(), "logs", "talker")
		if err == nil && strings.TrimSpace(out) != "talker" {
			err = fmt.Errorf("logs: %q", out)
		}
		return err
	})
	c.portForward(t, web.Name)
}

// portForward reaches a pod's port by the API server and kubelet.
func (c *cluster) portForward(t *testing.T, pod string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.Kubectl(ctx, "port-forward", "pod/"+pod, "18080:8080")
		ended <- err
	}()
	eventually(t, func() error {
		out, err := c.NodeExec(ctx, underlay.ControlPlane, bed.Tool, "get", "http://127.0.0.1:18080/")
		if err == nil && !strings.HasPrefix(out, pod+" ") {
			err = fmt.Errorf("answer %q, want %s's", out, pod)
		}
		return err
	})
	cancel()
	<-ended
}
