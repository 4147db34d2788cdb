package bridged

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// serviceYAML is a Service of both families with one backend, for TCP and UDP.
func serviceYAML(name string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {app: %[1]s}
  ports:
  - {name: tcp, protocol: TCP, port: 80, targetPort: 8080}
  - {name: udp, protocol: UDP, port: 80, targetPort: 8080}
`, name)
}

// ClusterIPs are reachable from every kind of pod, and from the node, with every kind of pod as backend, on the same
// node and on the other: with the cluster's own kube-proxy and strict reverse path filtering. In mode bridge, and after
// the nodes have changed to mode steer under running pods.
func TestRootServices(t *testing.T) {
	ovstest.UserspaceOnly(t, "Services are iptables, before Open vSwitch sees a packet")
	c := up(t, lab.Options{Cluster: lab.Kube})
	for _, name := range c.Nodes() {
		strictPaths(t, c.host(t, name))
	}
	kinds := []string{routed, "0", "10", "20"}
	clients := append(c.addPods(t, "client", kinds, "node1"), c.host(t, "node1"))
	vips := map[string][]string{}
	for _, p := range c.addBackends(t, kinds) {
		answer(t, p)
		out, err := c.Kubectl(t.Context(), "get", "service", p.name, "-o", "jsonpath={.spec.clusterIPs[*]}")
		must(t, err)
		if vips[p.name] = strings.Fields(out); len(vips[p.name]) != 2 {
			t.Fatalf("the Service has the ClusterIPs %v, want one of each family", vips[p.name])
		}
	}
	t.Run("bridge", func(t *testing.T) { callAll(t, clients, vips) })
	c.toSteer(t)
	t.Run("steer", func(t *testing.T) { callAll(t, clients, vips) })
}

// toSteer starts agents in mode steer without a tunnel, which needs mode bridge on the userspace datapath.
func (c cluster) toSteer(t *testing.T) {
	t.Helper()
	for _, name := range c.Nodes() {
		must(t, c.AgentStop(labtest.Within(t, 15*time.Second), name))
		node := c.host(t, name)
		_, err := node.run("sh", "-ec", `sed -i 's/mode: bridge/mode: steer/' "$0"; echo 'trafficEncapMode: noEncap' >>"$0"`,
			"/etc/fairlead/agent.conf")
		must(t, err)
		must(t, c.AgentStart(labtest.Within(t, 5*time.Second), name))
		must(t, c.WaitReady(labtest.Within(t, time.Minute), name))
		wait(t, 30*time.Second, func() string {
			out, err := node.run(filepath.Join(binDir, "fairlead-agent"), "uplink", "status")
			if err != nil || !strings.Contains(out, "attached: NIC eth0, mode steer") || strings.Contains(out, "next step") {
				return fmt.Sprintf("%s: %s, %v", name, out, err)
			}
			return ""
		})
	}
}

// callAll calls all Services from all clients.
func callAll(t *testing.T, clients []place, vips map[string][]string) {
	known := time.Now().Add(30 * time.Second) // deadline for kube-proxy's rules of all Services
	var calls errgroup.Group
	calls.SetLimit(8)
	for _, from := range clients {
		for backend, ips := range vips {
			for _, ip := range ips {
				for _, network := range []string{"tcp", "udp"} {
					calls.Go(func() error {
						if err := reaches(from, network, ip, backend, known); err != nil {
							t.Errorf("%s to Service %s (%s, %s): %v", from.name, backend, ip, network, err)
						}
						return nil
					})
				}
			}
		}
	}
	_ = calls.Wait() // errors are reported by each call
}

// addBackends creates a pod of each kind on each node, with a Service of its own.
func (c cluster) addBackends(t *testing.T, kinds []string) (all []place) {
	t.Helper()
	var manifests []string
	for _, node := range c.Nodes() {
		for _, kind := range kinds {
			name := "s-" + kind + "-" + node
			all = append(all, place{name: name, kind: kind})
			manifests = append(manifests, podYAML(name, kind, node, "app: "+name), serviceYAML(name))
		}
	}
	c.apply(t, manifests...)
	must(t, c.WaitPods(labtest.Within(t, 2*time.Minute)))
	for i, p := range all {
		all[i] = c.pod(t, p.name, p.kind)
	}
	return all
}

// strictPaths enables strict reverse path filtering (RFC 3704, 2.2) on all interfaces.
func strictPaths(t *testing.T, p place) {
	t.Helper()
	_, err := p.run("sh", "-ec", "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 1 >$f; done")
	must(t, err)
}

// answer starts servers in the pod that answer with its name, by TCP and UDP.
func answer(t *testing.T, p place) {
	t.Helper()
	var tcp net.Listener
	must(t, p.do(func() (err error) { tcp, err = net.Listen("tcp", ":8080"); return err }))
	t.Cleanup(func() { tcp.Close() })
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, p.name)
			conn.Close()
		}
	}()
	for _, ip := range p.ips {
		var udp *net.UDPConn
		must(t, p.do(func() (err error) {
			udp, err = net.ListenUDP("udp", &net.UDPAddr{IP: ip.AsSlice(), Port: 8080})
			return err
		}))
		t.Cleanup(func() { udp.Close() })
		go func() {
			for buf := make([]byte, 64); ; {
				_, from, err := udp.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				_, _ = udp.WriteToUDPAddrPort([]byte(p.name), from) // the client reports a missing answer
			}
		}()
	}
}

// reaches expects the backend's answer three times, once kube-proxy has the Service.
func reaches(from place, network, vip, backend string, known time.Time) error {
	for good := 0; ; {
		got, err := whoAnswers(from, network, vip)
		switch {
		case err == nil && got != backend:
			return fmt.Errorf("%q has answered", got)
		case err == nil:
			if good++; good == 3 {
				return nil
			}
		case good > 0 || time.Now().After(known):
			return fmt.Errorf("after %d answers: %w", good, err)
		default:
			time.Sleep(200 * time.Millisecond)
		}
	}
}

func whoAnswers(from place, network, vip string) (string, error) {
	var conn net.Conn
	err := from.do(func() (err error) {
		conn, err = net.DialTimeout(network, net.JoinHostPort(vip, "80"), 3*time.Second)
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return "", err
	}
	if network == "tcp" {
		data, err := io.ReadAll(conn)
		return string(data), err
	}
	if _, err := conn.Write([]byte("who?")); err != nil {
		return "", err
	}
	buf := make([]byte, 64)
	n, err := conn.Read(buf)
	return string(buf[:n]), err
}
