package bridged

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
// the nodes have changed to mode steer while pods run. A backend sees the same source address of a pod as with direct
// traffic, except with services: host, which is enabled and disabled in between.
func TestRootServices(t *testing.T) {
	ovstest.UserspaceOnly(t, "TestRootServices of test/suite has Services on the kernel's datapath, too")
	c := up(t, lab.Options{Cluster: lab.Kube})
	for _, name := range c.Nodes() {
		strictPaths(t, c.host(t, name))
	}
	kinds := []string{routed, "0", "10", "20"}
	clients := append(c.addPods(t, "client", kinds, "node1"), c.host(t, "node1"))
	backends := c.addBackends(t, kinds)
	c.awaitServices(t, 2*2*len(backends))
	t.Run("bridge", func(t *testing.T) { callAll(t, clients, backends, true) })
	c.restartWith(t, `echo 'services: host' >>"$0"`)
	c.awaitServices(t, 0)
	t.Run("bridge, by the host", func(t *testing.T) { callAll(t, clients, backends, false) })
	c.toSteer(t)
	t.Run("steer, by the host", func(t *testing.T) { callAll(t, clients, backends, false) })
	c.restartWith(t, `sed -i '/services: host/d' "$0"`)
	c.awaitServices(t, 2*2*len(backends))
	t.Run("steer", func(t *testing.T) { callAll(t, clients, backends, true) })
}

// restartWith changes the config of all agents, by a script, and starts them again.
func (c cluster) restartWith(t *testing.T, script string) {
	t.Helper()
	for _, name := range c.Nodes() {
		must(t, c.AgentStop(labtest.Within(t, 15*time.Second), name))
		_, err := c.host(t, name).run("sh", "-ec", script, "/etc/fairlead/agent.conf")
		must(t, err)
		must(t, c.AgentStart(labtest.Within(t, 5*time.Second), name))
		must(t, c.WaitReady(labtest.Within(t, time.Minute), name))
	}
}

// awaitServices waits until Open vSwitch translates at least so many ports of Services on each node, or none.
func (c cluster) awaitServices(t *testing.T, ports int) {
	t.Helper()
	for _, name := range c.Nodes() {
		wait(t, 30*time.Second, func() string {
			out, err := c.host(t, name).run("ovs-ofctl", "-OOpenFlow15", "dump-flows", "br-int", "table=2")
			n := strings.Count(out, "priority=200,")
			if err != nil || n < ports || ports == 0 && n > 0 {
				return fmt.Sprintf("%s translates %d ports of Services, want %d, %v", name, n, ports, err)
			}
			return ""
		})
	}
}

// toSteer starts agents in mode steer without a tunnel, which needs mode bridge on the userspace datapath.
func (c cluster) toSteer(t *testing.T) {
	t.Helper()
	c.restartWith(t, `sed -i 's/mode: bridge/mode: steer/' "$0"; echo 'trafficEncapMode: noEncap' >>"$0"`)
	for _, name := range c.Nodes() {
		node := c.host(t, name)
		wait(t, 30*time.Second, func() string {
			out, err := node.run(filepath.Join(binDir, "fairlead-agent"), "uplink", "status")
			if err != nil || !strings.Contains(out, "attached: NIC eth0, mode steer") || strings.Contains(out, "next step") {
				return fmt.Sprintf("%s: %s, %v", name, out, err)
			}
			return ""
		})
	}
}

// backend is a pod behind a Service of its own.
type backend struct {
	place
	vips []netip.Addr
}

// callAll calls all Services from all clients. With own, backends must see the same source of pods as with direct
// traffic.
func callAll(t *testing.T, clients []place, backends []backend, own bool) {
	known := time.Now().Add(3 * time.Minute) // deadline for the rules of all Services: these are 640 calls
	var calls errgroup.Group
	calls.SetLimit(8)
	for _, from := range clients {
		for _, b := range backends {
			for _, ip := range b.vips {
				for _, network := range []string{"tcp", "udp"} {
					calls.Go(func() error {
						want := b.name + " "
						var err error
						if own && from.netns != "" {
							want, err = b.sees(from, network, ip, known)
						}
						if err == nil {
							err = reaches(from, network, netip.AddrPortFrom(ip, 80), want, known)
						}
						if err != nil {
							t.Errorf("%s to Service %s (%s, %s): %v", from.name, b.name, ip, network, err)
						}
						return nil
					})
				}
			}
		}
	}
	_ = calls.Wait() // errors are reported by each call
}

// sees is the backend's answer to what a client sends to the backend's own address, of the family of like.
func (b backend) sees(from place, network string, like netip.Addr, limit time.Time) (got string, err error) {
	family := 4
	if like.Is6() {
		family = 6
	}
	own := netip.AddrPortFrom(b.of(family), 8080)
	for got, err = whoAnswers(from, network, own); err != nil && time.Now().Before(limit); {
		got, err = whoAnswers(from, network, own)
	}
	if err != nil {
		err = fmt.Errorf("at its own address %s: %w", own, err)
	}
	return got, err
}

// addBackends creates a pod of each kind on each node, with a Service of its own.
func (c cluster) addBackends(t *testing.T, kinds []string) (all []backend) {
	t.Helper()
	var manifests []string
	for _, node := range c.Nodes() {
		for _, kind := range kinds {
			name := "s-" + kind + "-" + node
			all = append(all, backend{place: place{name: name, kind: kind}})
			manifests = append(manifests, podYAML(name, kind, node, "app: "+name), serviceYAML(name))
		}
	}
	c.apply(t, manifests...)
	must(t, c.WaitPods(labtest.Within(t, 2*time.Minute)))
	client, err := c.Client()
	must(t, err)
	for i, p := range all {
		all[i].place = c.pod(t, p.name, p.kind)
		service, err := client.CoreV1().Services("default").Get(t.Context(), p.name, metav1.GetOptions{})
		must(t, err)
		for _, ip := range service.Spec.ClusterIPs {
			all[i].vips = append(all[i].vips, netip.MustParseAddr(ip))
		}
		if len(all[i].vips) != 2 {
			t.Fatalf("the Service has the ClusterIPs %v, want one of each family", service.Spec.ClusterIPs)
		}
		answer(t, all[i].place)
	}
	return all
}

// strictPaths enables strict reverse path filtering (RFC 3704, 2.2) on all interfaces.
func strictPaths(t *testing.T, p place) {
	t.Helper()
	_, err := p.run("sh", "-ec", "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 1 >$f; done")
	must(t, err)
}

// answer starts servers in the pod that answer with its name and the client's address, by TCP and UDP.
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
			fmt.Fprint(conn, p.name+" "+addrOf(conn.RemoteAddr()))
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
				// The client reports a missing answer.
				_, _ = udp.WriteToUDPAddrPort([]byte(p.name+" "+from.Addr().Unmap().String()), from)
			}
		}()
	}
}

func addrOf(a net.Addr) string { return netip.MustParseAddrPort(a.String()).Addr().Unmap().String() }

// reaches expects an answer that starts with want three times, once the Service is known: to kube-proxy, or to the
// datapath, which is revalidated late.
func reaches(from place, network string, to netip.AddrPort, want string, known time.Time) error {
	for good := 0; ; {
		got, err := whoAnswers(from, network, to)
		if err == nil && !strings.HasPrefix(got, want) {
			err = fmt.Errorf("the answer is %q, want %q", got, want)
		}
		switch {
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

// whoAnswers waits 20 seconds for an answer. A datagram is sent again each second: a busy machine loses some.
func whoAnswers(from place, network string, to netip.AddrPort) (string, error) {
	var conn net.Conn
	err := from.do(func() (err error) {
		conn, err = net.DialTimeout(network, to.String(), 20*time.Second)
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if network == "tcp" {
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return "", err
		}
		data, err := io.ReadAll(conn)
		return string(data), err
	}
	buf, n := make([]byte, 64), 0
	for range 20 {
		if err = conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
			break
		}
		if _, err = conn.Write([]byte("who?")); err != nil {
			break
		}
		if n, err = conn.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	return string(buf[:n]), err
}
