package kube

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pods created through the API reach each other, on one node and across nodes, in both families; their addresses are
// from their node's podCIDRs and in the API.
func TestRootPodsTalk(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "b@node1", "c@node2")
	for _, pair := range [][2]string{{"a", "b"}, {"a", "c"}, {"c", "b"}} {
		b.ping(t, pair[0], pair[1], 20*time.Second)
	}
	states, err := b.NodeStates(t.Context())
	must(t, err)
	podCIDRs := map[string][]string{}
	for _, s := range states {
		podCIDRs[s.Node] = s.PodCIDRs
	}
	for _, name := range []string{"a", "b", "c"} {
		p := b.pod(t, name)
		var want []string
		for i, ip := range p.ips {
			want = append(want, ip.String())
			if cidr := podCIDRs[p.host.Name][i]; !netip.MustParsePrefix(cidr).Contains(ip) {
				t.Errorf("pod %s on %s has %s, outside of %s", name, p.host.Name, ip, cidr)
			}
		}
		inAPI, err := b.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		var got []string
		for _, ip := range inAPI.Status.PodIPs {
			got = append(got, ip.IP)
		}
		if len(want) != 2 || !slices.Equal(got, want) {
			t.Errorf("the API says pod %s has %q, want %v", name, got, want)
		}
	}
}

const service = `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ipFamilyPolicy: RequireDualStack, selector: {app: s}, ports: [{port: 80, targetPort: 8080}]}
`

// A ClusterIP is reachable from a routed pod and from a node, in both families, and has backends on both nodes; one of
// them is on the client's node.
func TestRootServices(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "s1@node1", "s2@node2")
	hits := map[string]*atomic.Int32{"s1": {}, "s2": {}}
	for name, n := range hits {
		b.pod(t, name).serve(t, name, n)
	}
	_, err := b.Apply("test", []byte(service))
	must(t, err)
	vips := b.clusterIPs(t, "web")
	if len(vips) != 2 {
		t.Fatalf("the Service has the ClusterIPs %v, want one of each family", vips)
	}
	node, err := b.Host("node1")
	must(t, err)
	a := b.pod(t, "a")
	for _, vip := range vips {
		for from, do := range map[string]func(func() error) error{"pod a": a.do, "node1": node.Do} {
			seen := map[string]bool{}
			wait(t, 30*time.Second, func() string { // until kube-proxy has both backends: the second may come later
				who, err := call(do, vip)
				if err != nil {
					return err.Error()
				}
				if seen[who] = true; len(seen) < len(hits) {
					return fmt.Sprintf("%s to %s: only these answer: %v", from, vip, seen)
				}
				return ""
			})
			for _, n := range hits {
				n.Store(0)
			}
			for range 60 { // kube-proxy chooses randomly: 60 calls miss one of two backends once in 2^59 runs
				who, err := call(do, vip)
				if err != nil {
					t.Errorf("%s to %s: %v", from, vip, err)
				} else if hits[who] == nil {
					t.Errorf("%s to %s: %q answered", from, vip, who)
				}
			}
			for name, n := range hits {
				if n.Load() == 0 {
					t.Errorf("%s to %s: 60 calls, none came to %s", from, vip, name)
				}
			}
		}
	}
}

// A pod reaches the API by the address in every pod's environment.
func TestRootPodReachesTheAPI(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1")
	a := b.pod(t, "a")
	wait(t, time.Minute, func() string { // a restarted API server is not an endpoint of its Service at first
		var conn net.Conn
		err := a.do(func() (err error) {
			conn, err = net.DialTimeout("tcp", "10.96.0.1:443", 10*time.Second)
			return err
		})
		if err != nil {
			return err.Error()
		}
		conn.Close()
		return ""
	})
}

func (p pod) do(f func() error) error { return p.host.DoNet(p.netns, f) }

// serve answers on port 8080 of the pod with who, and counts the requests, until the test ends.
func (p pod) serve(t *testing.T, who string, calls *atomic.Int32) {
	t.Helper()
	var listener net.Listener
	must(t, p.do(func() (err error) {
		listener, err = net.Listen("tcp", ":8080")
		return err
	}))
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			calls.Add(1)
			fmt.Fprint(conn, who)
			conn.Close()
		}
	}()
}

// call connects to port 80 of vip from where do runs it, and returns the answer.
func call(do func(func() error) error, vip string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var conn net.Conn
	err := do(func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(vip, "80"))
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return "", err
	}
	data, err := io.ReadAll(conn)
	return string(data), err
}
