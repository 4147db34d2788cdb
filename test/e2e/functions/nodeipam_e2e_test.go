package functions

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
	"github.com/fairlead-cni/fairlead/test/e2e/install"
)

// nodeIPAM is a cluster in which nothing assigns podCIDRs, and no kube-proxy runs until the nodes are Ready. The agents
// report why they do not serve; then fairlead-controller assigns podCIDRs, and everything works. Open vSwitch
// translates Services and enforces policies.
func nodeIPAM(t *testing.T, asked rights) {
	c := functions{cluster.Bare(t, bed.Options{Name: "functions-nodeipam", NoNodeCIDRs: true,
		KubeProxy: bed.NoKubeProxy, Audit: true})}
	defer func() { asked.add(t, c.AuditLog()) }()
	plane := c.Underlay().Family.ControlPlaneAddrs()[0].Addr().String()
	values := []string{"agent.config.trafficEncapMode=noEncap", "agent.config.podCIDRWait=5s",
		"agent.config.services=ovs", "agent.config.networkPolicies=enforce",
		"kubeAPIServerOverride=" + net.JoinHostPort(plane, "6443")}
	cluster.Must(t, install.Apply(t.Context(), c.Bed, values...))
	t.Run("no podCIDR", c.saysWhy)

	c.Install(t, append(values, "controller.config.nodeIPAM.enableNodeIPAM=true",
		`controller.config.nodeIPAM.clusterCIDRs={172.100.0.0/20,fd00:172:100::/60}`)...)
	for _, node := range c.Nodes() {
		cluster.Must(t, c.StartKubeProxy(node, bed.Nftables))
	}
	c.apply(t, "testdata/functions.yaml")
	c.Running(t, "client", 3)
	t.Run("ranges", c.inRanges)
	t.Run("Deployment", c.pods)
	t.Run("ClusterIP", func(t *testing.T) { c.viaService(t, seesOwn) })
	t.Run("NodePort", c.nodePort)
	t.Run("UDP", c.dnsLike)
	t.Run("NetworkPolicy", c.policed)
}

// policed checks that a NetworkPolicy denies a pod access to all pods that it selects, on its own node and others,
// directly and through their Service, and allows others.
func (c functions) policed(t *testing.T) {
	service, err := c.API.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	cluster.Must(t, err)
	urls := append(cluster.URLs("8080", cluster.Addrs(c.Running(t, "web", 3)...)...),
		cluster.URLs("80", service.Spec.ClusterIPs...)...)
	stranger := c.Running(t, "host-port", 1)[0]
	c.Get(t, stranger.Name, urls...)
	c.apply(t, "testdata/policy.yaml")
	get := append([]string{"get", "--timeout=300ms"}, urls...)
	cluster.Eventually(t, func() error {
		answers, err := c.Tool(t.Context(), stranger.Name, get...)
		if err == nil || strings.Contains(answers, "web-") {
			return fmt.Errorf("%s is kept off nothing, or not all: %v\n%s", stranger.Name, err, answers)
		}
		if refused := strings.Count(err.Error(), "Client.Timeout"); refused != len(urls) {
			return fmt.Errorf("%d of %d had no answer: %w", refused, len(urls), err)
		}
		return nil
	})
	for _, client := range c.Running(t, "client", len(c.Nodes())) {
		cluster.Must(t, seesOwn(client, c.Get(t, client.Name, urls...)))
	}
}

// saysWhy checks that an Event on each Node reports that nothing assigns podCIDRs, and names the remedy.
func (c functions) saysWhy(t *testing.T) {
	for _, node := range c.Nodes() {
		cluster.Eventually(t, func() error {
			events, err := c.API.CoreV1().Events("").List(t.Context(), metav1.ListOptions{
				FieldSelector: "reason=PodCIDRUnusable,involvedObject.name=" + node})
			if err != nil {
				return err
			}
			for _, e := range events.Items {
				if strings.Contains(e.Message, "allocate-node-cidrs") {
					t.Log(e.Message)
					return nil
				}
			}
			return fmt.Errorf("no Event on %s names the cause among %d", node, len(events.Items))
		})
	}
}

// inRanges checks that each Node has a podCIDR of each range, and that none is assigned twice.
func (c functions) inRanges(t *testing.T) {
	nodes, err := c.API.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	cluster.Must(t, err)
	ranges := []netip.Prefix{netip.MustParsePrefix("172.100.0.0/20"), netip.MustParsePrefix("fd00:172:100::/60")}
	owner := map[string]string{}
	for _, n := range nodes.Items {
		if len(n.Spec.PodCIDRs) != len(ranges) {
			t.Errorf("%s has podCIDRs %v", n.Name, n.Spec.PodCIDRs)
			continue
		}
		for i, cidr := range n.Spec.PodCIDRs {
			if !ranges[i].Contains(netip.MustParsePrefix(cidr).Addr()) || owner[cidr] != "" {
				t.Errorf("%s has %s, outside of %s or that of %q as well", n.Name, cidr, ranges[i], owner[cidr])
			}
			owner[cidr] = n.Name
		}
	}
	if out := c.Run(t, "get", "podcidrranges"); strings.Count(out, "Available") != len(ranges) {
		t.Errorf("kubectl get podcidrranges:\n%s", out)
	}
}
