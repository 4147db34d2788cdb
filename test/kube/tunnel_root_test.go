package kube

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// A Service whose backends are no pods: port 6081 is the tunnel's.
const farService = `apiVersion: v1
kind: Service
metadata: {name: far}
spec: {type: NodePort, ports: [{name: tunnel, port: 6081, nodePort: 30081, protocol: UDP},
  {name: other, port: 6082, nodePort: 30082, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: far, labels: {kubernetes.io/service-name: far}}
addressType: IPv4
endpoints: [{addresses: [%s]}]
ports: [{name: tunnel, port: 6081, protocol: UDP}, {name: other, port: 6082, protocol: UDP}]
`

// A pod sends no tunnel packets through a Service either, with kube-proxy's own rules: it accepts what it has marked.
func TestRootNoTunnelThroughAService(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1")
	outside, err := b.Host(underlay.Outside)
	must(t, err)
	proxy, err := b.KubeProxy("node1")
	must(t, err)
	at := underlay.Dual.GatewayAddrs()[0].Addr().String()
	ears := map[string]net.PacketConn{}
	for _, port := range []string{"6081", "6082"} {
		must(t, outside.Do(func() (err error) { ears[port], err = net.ListenPacket("udp", at+":"+port); return err }))
		defer ears[port].Close()
	}
	_, err = b.Apply("test", fmt.Appendf(nil, farService, at))
	must(t, err)
	node := underlay.Dual.NodeAddrs(1)[0].Addr().String()
	vip, err := b.Kubectl(t.Context(), "get", "service", "far", "-o", "jsonpath={.spec.clusterIP}")
	must(t, err)
	for _, mode := range []string{"iptables", "nftables"} { // the second is the lab's
		must(t, b.KubeProxyStop(labtest.Within(t, 20*time.Second), "node1"))
		must(t, b.plane.StartKubeProxy(proxy, mode))
		for _, to := range [][2]string{{node + ":30081", node + ":30082"}, {vip + ":6081", vip + ":6082"}} {
			wait(t, 30*time.Second, func() string { // until kube-proxy has it
				b.say(t, "a", to[0], mode+" "+to[0])
				b.say(t, "a", to[1], mode+" "+to[0])
				return hear(ears["6082"], 200*time.Millisecond, mode+" "+to[0])
			})
			if hear(ears["6081"], time.Millisecond, mode+" "+to[0]) == "" {
				t.Errorf("kube-proxy in mode %s: through %s a pod reaches the tunnel's port of another host", mode, to[0])
			}
		}
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

// hear says what is missing when what does not come within limit.
func hear(ear net.PacketConn, limit time.Duration, what string) (missing string) {
	_ = ear.SetReadDeadline(time.Now().Add(limit))
	for b := make([]byte, 64); ; {
		n, _, err := ear.ReadFrom(b)
		if err != nil {
			return err.Error()
		}
		if string(b[:n]) == what {
			return ""
		}
	}
}
