package kube

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// A Service whose backends are not pods: port 6081 is the tunnel's.
const farService = `apiVersion: v1
kind: Service
metadata: {name: far}
spec: {type: NodePort, ipFamilyPolicy: RequireDualStack, ports: [{name: tunnel, port: 6081, nodePort: 30081,
  protocol: UDP}, {name: other, port: 6082, nodePort: 30082, protocol: UDP}]}
`

// farSlice is its EndpointSlice of one family.
const farSlice = `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: "far-%[1]s", labels: {kubernetes.io/service-name: far}}
addressType: %[2]s
endpoints: [{addresses: ["%[3]s"]}]
ports: [{name: tunnel, port: 6081, protocol: UDP}, {name: other, port: 6082, protocol: UDP}]
`

// A pod cannot send tunnel packets through a Service either, although kube-proxy's own rules accept what it has marked.
// Nor can a pod of another node, through this one.
func TestRootNoTunnelThroughAService(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "z@node2")
	outside, err := b.Host(underlay.Outside)
	must(t, err)
	proxy, err := b.KubeProxy("node1")
	must(t, err)
	manifest := farService
	ears := map[string]net.PacketConn{} // by port and family
	for i, family := range []string{"IPv4", "IPv6"} {
		at := underlay.Dual.GatewayAddrs()[i].Addr().String()
		manifest += fmt.Sprintf(farSlice, strings.ToLower(family), family, at)
		for _, port := range []string{"6081", "6082"} {
			must(t, outside.Do(func() (err error) {
				ears[port+family], err = net.ListenPacket("udp", net.JoinHostPort(at, port))
				return err
			}))
			defer ears[port+family].Close()
		}
	}
	_, err = b.Apply("test", []byte(manifest))
	must(t, err)
	vips := b.clusterIPs(t, "far")
	for _, mode := range []string{"iptables", "nftables"} { // the second is the lab's
		must(t, b.KubeProxyStop(labtest.Within(t, 20*time.Second), "node1"))
		must(t, b.plane.StartKubeProxy(proxy, mode))
		b.translates(t, mode)
		for i, family := range []string{"IPv4", "IPv6"} {
			node := underlay.Dual.NodeAddrs(1)[i].Addr().String()
			ways := [][4]string{{"a", node, "30081", "30082"}, {"a", vips[i], "6081", "6082"}}
			if mode == "iptables" { // nftables: NodePorts only at the first address, where no tunnel leads
				gateway := netip.MustParsePrefix(b.node(t, "node1").Spec.PodCIDRs[i]).Addr().Next().String()
				ways = append(ways, [4]string{"z", gateway, "30081", "30082"})
			}
			for _, w := range ways {
				pod, to := w[0], w[1]
				what := fmt.Sprint(mode, " ", family, ", pod ", pod, " to ", to)
				wait(t, 30*time.Second, func() string { // until kube-proxy has it
					b.say(t, pod, net.JoinHostPort(to, w[3]), what)
					return hear(ears["6082"+family], 200*time.Millisecond, what)
				})
				what += ", and now the tunnel's port"
				wait(t, time.Minute, func() string { // a datagram may be lost
					b.say(t, pod, net.JoinHostPort(to, w[2]), what)
					b.say(t, pod, net.JoinHostPort(to, w[3]), what)
					return hear(ears["6082"+family], 200*time.Millisecond, what)
				})
				if hear(ears["6081"+family], time.Millisecond, what) == "" {
					t.Errorf("%s: a pod reaches the tunnel's port of another host", what)
				}
			}
		}
	}
}

// translates waits until node1's kube-proxy has rules of its mode for the Service far. Rules left by kube-proxy in the
// other mode also translate, until the starting kube-proxy has removed them.
func (b *bed) translates(t *testing.T, mode string) {
	t.Helper()
	service, lists := "default/far:tunnel", []string{"iptables-save -t nat", "ip6tables-save -t nat"}
	if mode == "nftables" {
		service, lists = "default/far/udp/tunnel", []string{"nft list table ip kube-proxy", "nft list table ip6 kube-proxy"}
	}
	for _, list := range lists {
		wait(t, time.Minute, func() string {
			out, err := b.NodeExec(labtest.Within(t, 20*time.Second), "node1", strings.Fields(list)...)
			if err != nil || !strings.Contains(out, service) {
				return fmt.Sprintf("%s shows nothing of %s: %v", list, service, err)
			}
			return ""
		})
	}
}

// say sends a datagram from a pod.
func (b *bed) say(t *testing.T, pod, to, what string) {
	t.Helper()
	must(t, b.pod(t, pod).do(func() error {
		conn, err := net.Dial("udp", to)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte(what))
		return err
	}))
}

// hear returns what is missing if what does not arrive within limit.
func hear(ear net.PacketConn, limit time.Duration, what string) (missing string) {
	_ = ear.SetReadDeadline(time.Now().Add(limit))
	for b := make([]byte, 256); ; {
		n, _, err := ear.ReadFrom(b)
		if err != nil {
			return what + ": " + err.Error()
		}
		if string(b[:n]) == what {
			return ""
		}
	}
}
