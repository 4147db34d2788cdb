package chain

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// limits are runtime arguments for the plugin bandwidth. Without any, its version 1.1.1 fails at CHECK.
func limits() map[string]any {
	return map[string]any{"bandwidth": map[string]any{"ingressRate": 1e9, "ingressBurst": 1e8, "egressRate": 1e9, "egressBurst": 1e8}}
}

// All verbs for one container, in every version of the spec, in a chain where Debian's plugins support it.
func TestRootVerbs(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	r, _ := up(t)
	for _, n := range []struct{ version, conflist string }{
		{"0.3.0", full("0.3.0")}, {"0.3.1", full("0.3.1")}, {"0.4.0", full("0.4.0")}, {"1.0.0", full("1.0.0")},
		{"1.1.0", alone("1.1.0")},
	} {
		t.Run(n.version, func(t *testing.T) {
			p := r.container(t)
			p.CapabilityArgs = limits()
			result := r.mustAdd(t, n.conflist, p)
			if result.Version() != n.version {
				t.Errorf("the result is of version %s", result.Version())
			}
			printed := text(t, result)
			if old := strings.HasPrefix(n.version, "0."); old != strings.Contains(printed, `"version":"4"`) ||
				(n.version == "1.1.0") != strings.Contains(printed, `"mtu":1450`) {
				t.Errorf("keys of another version: %s", printed)
			}
			pod := asPod(t, p, result)
			r.has(t, pod)
			r.asResultSays(t, p, result)

			again := r.mustAdd(t, alone(n.version), p) // the other plugins fail when they are called twice
			if got := asPod(t, p, again); fmt.Sprint(got) != fmt.Sprint(pod) {
				t.Errorf("repeated ADD: %+v, before: %+v", got, pod)
			}
			r.has(t, pod)

			err := r.check(n.conflist, p)
			if before := n.version < "0.4.0"; before != (err != nil && strings.Contains(err.Error(), "does not support the CHECK")) ||
				!before && err != nil {
				t.Errorf("CHECK: %v", err)
			}
			for range 2 {
				r.mustDel(t, n.conflist, p)
				r.has(t)
			}
			unknown := *p
			unknown.ContainerID = "unknown"
			r.mustDel(t, n.conflist, &unknown)

			r.mustAdd(t, n.conflist, p)
			r.end(t, p)
			r.mustDel(t, n.conflist, p)
			r.has(t)
			unknown.NetNS = ""
			r.mustDel(t, n.conflist, &unknown)
		})
	}
}

// asResultSays compares the container with the result.
func (r runtime) asResultSays(t *testing.T, p *libcni.RuntimeConf, any types.Result) {
	t.Helper()
	result, err := types100.NewResultFromResult(any)
	must(t, err)
	link, addrs := r.in(t, p, "ip link show dev eth0"), r.in(t, p, "ip addr show dev eth0")
	routes := r.in(t, p, "ip -4 route show default") + r.in(t, p, "ip -6 route show default")
	if len(result.IPs) != 2 || len(result.Routes) != 2 || len(result.Interfaces) < 2 {
		t.Errorf("want two addresses, two routes and two interfaces: %s", text(t, any))
	}
	for _, ip := range result.IPs {
		i := result.Interfaces[*ip.Interface]
		if i.Name != "eth0" || i.Sandbox != p.NetNS || !strings.Contains(link, i.Mac) {
			t.Errorf("%s is on %+v, and eth0 is %s", ip, i, link)
		}
		if !ip.Address.Contains(ip.Gateway) || !strings.Contains(addrs, " "+ip.Address.String()+" ") ||
			!strings.Contains(routes, "default via "+ip.Gateway.String()+" ") {
			t.Errorf("address %s, gateway %s; the container has %s %s", ip.Address.String(), ip.Gateway, addrs, routes)
		}
	}
	if _, err := r.run(nil, "ip link show dev "+result.Interfaces[0].Name); err != nil || result.Interfaces[0].Sandbox != "" {
		t.Errorf("the host end: %+v, %v", result.Interfaces[0], err)
	}
}

// CHECK reports what is wrong.
func TestRootCheckFails(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	r, _ := up(t)
	for _, n := range []string{full("0.4.0"), alone("1.1.0")} {
		for _, c := range []struct{ harm, want string }{ // a regular expression
			{"ip -4 addr flush dev eth0", "eth0 lacks address 10.77.1."},
			{"ip -6 addr flush dev eth0 scope global", "eth0 lacks address fd77:0:0:1::"},
			{"ip link set eth0 down", "eth0 is down"},
			{"ip link set eth0 address 02:00:00:00:00:99", "eth0 has MAC 02:00:00:00:00:99, want "},
			{"ip link set eth0 mtu 1300", "eth0 has MTU 1300, want 1450"},
			{"ip -4 route del default", "eth0 lacks route 0.0.0.0/0 via 10.77.1.1"},
			{"ip -6 route del default", "eth0 lacks route ::/0 via fd77:0:0:1::1"},
			{"ip link del eth0", "is missing on the node|has no record on this node"}, // the agent reaps it
		} {
			p := r.container(t)
			p.CapabilityArgs = limits()
			r.mustAdd(t, n, p)
			must(t, r.check(n, p))
			r.in(t, p, c.harm)
			if err := r.check(n, p); err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) {
				t.Errorf("after %q: %v, want %q", c.harm, err, c.want)
			}
			r.mustDel(t, n, p)
			r.end(t, p)
		}
		r.has(t)
	}
}

// A port that was deleted externally is recreated; while it is missing, CHECK may report it.
func TestRootCheckPortDeleted(t *testing.T) {
	r, _ := up(t)
	p := r.container(t)
	pod := asPod(t, p, r.mustAdd(t, alone("1.1.0"), p))
	_, err := r.run(nil, "ovs-vsctl del-port "+pod.HostIf())
	must(t, err)
	eventually(t, 15*time.Second, func() error {
		if _, there := r.state(t).Ports[pod.HostIf()]; !there {
			return errors.New("the port is away")
		}
		return r.check(alone("1.1.0"), p)
	})
	r.has(t, pod)
}

// ADD for the same container, or for another one with its network namespace, immediately after DEL: the port and the
// veth still exist.
func TestRootADDAtOnceAfterDEL(t *testing.T) {
	r, _ := up(t)
	p := r.container(t)
	n, id := alone("1.1.0"), p.ContainerID
	for i := range 10 {
		p.ContainerID = fmt.Sprint(id, i/3) // each is tried three times
		r.mustAdd(t, n, p)
		must(t, r.check(n, p))
		r.in(t, p, "ping -c1 -w30 10.77.1.1")
		r.mustDel(t, n, p)
	}
	pod := asPod(t, p, r.mustAdd(t, n, p))
	r.has(t, pod)
	r.mustDel(t, n, p)
	r.has(t)
}

// GC removes attachments that the runtime does not list, and nothing of another network.
func TestRootGC(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	r, _ := up(t)
	other := network("1.1.0", "other")
	a, b, c, d := r.container(t), r.container(t), r.container(t), r.container(t)
	podA := asPod(t, a, r.mustAdd(t, alone("1.1.0"), a))
	podB := asPod(t, b, r.mustAdd(t, alone("1.1.0"), b))
	r.mustAdd(t, alone("1.1.0"), c)
	podD := asPod(t, d, r.mustAdd(t, other, d))
	must(t, r.gc(alone("1.1.0"), a, b))
	r.has(t, podA, podB, podD)
	must(t, r.gc(alone("1.1.0")))
	r.has(t, podD)
	must(t, r.gc(other, a))
	r.has(t)
}

// STATUS reports whether an ADD can succeed.
func TestRootStatus(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	r, _ := up(t)
	for _, d := range []lab.Daemon{lab.OVSDB, lab.Vswitchd} {
		must(t, r.status(alone("1.1.0")))
		must(t, r.lab.OVSStop(labtest.Within(t, 20*time.Second), r.node.Name, d))
		eventually(t, 30*time.Second, func() error {
			if err := r.status(alone("1.1.0")); code(err) != 50 {
				return fmt.Errorf("%s is down, and STATUS says: %w", d, err)
			}
			return nil
		})
		must(t, r.lab.OVSStart(labtest.Within(t, 20*time.Second), r.node.Name, d))
		eventually(t, 30*time.Second, func() error { return r.status(alone("1.1.0")) })
	}
}
