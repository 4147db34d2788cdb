package pools

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// A host on the underlay has an address of a pool: it is skipped and reported, in every VLAN and family.
func TestRootConflictOnTheWire(t *testing.T) {
	b := cluster(t)
	b.patient(t)
	router, err := b.Host(underlay.Router)
	must(t, err)
	ip := func(line string) {
		t.Helper()
		cmd := exec.Command("ip", strings.Fields(line)...)
		must(t, router.Start(cmd))
		must(t, cmd.Wait())
	}
	for _, c := range []struct {
		pool         string
		family       int
		vlan         uint16
		first, last  string
		theirs, ours string
	}{
		{"wire10", 4, 10, "150", "151", "192.168.110.150/24 dev eth10", "192.168.110.151"},
		{"wire10v6", 6, 10, "1500", "1501", "fd77:0:0:a10::1500/64 dev eth10", "fd77:0:0:a10::1501"},
		{"wire0", 4, 0, "150", "151", "192.168.77.150/24 dev eth0", "192.168.77.151"},
	} {
		ip("addr add " + c.theirs)
		defer ip("addr del " + c.theirs)
		b.apply(t, poolYAML(c.pool, c.family, c.vlan, c.first, c.last))
		// Of two addresses for two pods one is in use on the underlay.
		first, second := c.pool+"-a", c.pool+"-b"
		b.apply(t, podYAML(first, node, "ippools: "+c.pool))
		if got := b.running(t, first)[0].String(); got != c.ours {
			t.Errorf("%s has %s, want %s", first, got, c.ours)
		}
		b.apply(t, podYAML(second, node, "ippools: "+c.pool))
		b.event(t, second, "AddressAllocationFailed", "(1 by hosts outside of the cluster)")
		theirs, _, _ := strings.Cut(c.theirs, "/")
		wait(t, 30*time.Second, func() string {
			messages := b.events(t, first, "AddressInUse") + b.events(t, second, "AddressInUse")
			if !strings.Contains(messages, theirs+" of IPPool "+c.pool+" is used by another host on the underlay (MAC ") {
				return fmt.Sprintf("the Events say %q, want %s and a MAC", messages, theirs)
			}
			return ""
		})
	}
	// The node's own address, which is not in its Node's status, and for which no probe is answered on the underlay.
	_, err = b.NodeExec(labtest.Within(t, 10*time.Second), node, "ip", "addr", "add", "192.168.77.152/24", "dev", b.Transport())
	must(t, err)
	defer b.NodeExec(context.Background(), node, "ip", "addr", "del", "192.168.77.152/24", "dev", b.Transport())
	b.apply(t, poolYAML("own0", 4, 0, "152", "152"), podYAML("own", node, "ippools: own0"))
	b.event(t, "own", "AddressInUse", "192.168.77.152 of IPPool own0 is on one of node node1's own interfaces")
	for _, a := range b.allocations(t) {
		if a.Spec.Phase == api.PhaseConflict && (a.Spec.MAC == "" || a.Spec.Owner.ContainerID != "") {
			t.Errorf("the mark is %+v", a.Spec)
		}
	}
}

// patient gives the probes of node1's agent a longer timeout, until the test ends, because ovs-vswitchd of the lab's
// switch may get no processor for seconds: after the default of 200 ms an address that is in use counts as free.
func (b *bed) patient(t *testing.T) {
	t.Helper()
	h, err := b.Host(node)
	must(t, err)
	file := h.Private("/etc/fairlead/agent.conf")
	before, err := os.ReadFile(file)
	must(t, err)
	config := map[string]any{}
	must(t, yaml.Unmarshal(before, &config))
	config["ipam"].(map[string]any)["conflictProbeTimeout"] = "4s"
	after, err := yaml.Marshal(config)
	must(t, err)
	t.Cleanup(func() { // the next agent has the config as it was
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		must(t, os.WriteFile(file, before, 0o644))
		must(t, b.AgentKill(ctx, node))
	})
	must(t, os.WriteFile(file, after, 0o644))
	b.killAgent(t)
	must(t, b.WaitReady(labtest.Within(t, time.Minute), node))
}

// A neighbour with an old cache entry of the address learns the new MAC before the pod sends anything.
func TestRootAnnounced(t *testing.T) {
	b := cluster(t)
	b.apply(t, poolYAML("reported", 4, 10, "160", "169"), poolYAML("reported6", 6, 10, "1600", "160f"))
	router, err := b.Host(underlay.Router)
	must(t, err)
	ip := func(line string) string {
		t.Helper()
		cmd := exec.Command("ip", strings.Fields(line)...)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		must(t, router.Start(cmd))
		if err := cmd.Wait(); err != nil {
			t.Fatalf("ip %s: %v %s", line, err, out.String())
		}
		return out.String()
	}
	addrs := []string{"192.168.110.165", "fd77:0:0:a10::1605"}
	for _, a := range addrs {
		ip("neigh replace " + a + " lladdr 02:00:00:00:00:99 dev eth10 nud stale")
	}
	b.apply(t, podYAML("a", node, `ippools: "reported,reported6"`, `pod-ips: "`+strings.Join(addrs, ",")+`"`))
	b.running(t, "a")
	out, err := b.PodExec(labtest.Within(t, 20*time.Second), "default/a", "ip", "-br", "link", "show", "eth0")
	must(t, err)
	mac := strings.Fields(out)[2] // eth0@if7 UP 02:…
	for _, a := range addrs {
		wait(t, 10*time.Second, func() string {
			if now := ip("neigh show " + a + " dev eth10"); !strings.Contains(now, mac) {
				return "the router has " + now + ", the pod is " + mac
			}
			return ""
		})
	}
}

// An ADD does not wait for probes if they were sent before.
func TestRootProbedAhead(t *testing.T) {
	b := cluster(t)
	t.Cleanup(func() { // the agent that is started then has the intervals of other tests
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		must(t, b.AgentKill(ctx, node))
	})
	// Results stay valid however late an ADD comes. This agent has no pool in use, and counts from 0.
	t.Setenv(api.IntervalsVariable, os.Getenv(api.IntervalsVariable)+",agent.probeAge=1h")
	b.killAgent(t)
	must(t, b.WaitReady(labtest.Within(t, time.Minute), node))
	b.apply(t, poolYAML("ahead", 4, 10, "110", "159"), podYAML("a", node, "ippools: ahead"))
	b.running(t, "a")
	for i, pod := range []string{"b", "c", "d"} {
		// Three candidates after the first ADD, and one more after each.
		wait(t, 60*time.Second, func() string {
			if n := b.probes(t, "ahead"); n < 3+i {
				return fmt.Sprintf("asked ahead about %d addresses before %s", n, pod)
			}
			return ""
		})
		waited := b.probes(t, "add")
		b.apply(t, podYAML(pod, node, "ippools: ahead"))
		b.running(t, pod)
		if now := b.probes(t, "add"); now != waited {
			t.Errorf("the ADD of %s asked about %d addresses itself", pod, now-waited)
		}
	}
}

// probes is the number of addresses that were probed on the underlay.
func (b *bed) probes(t *testing.T, when string) int {
	t.Helper()
	return int(b.metric(t, fmt.Sprintf("fairlead_pool_probes_total{when=%q}", when)))
}

// metric is one of the agent's, zero if it has none of that name and labels.
func (b *bed) metric(t *testing.T, series string) (value float64) {
	t.Helper()
	h, err := b.Host(node)
	must(t, err)
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = h.Do(func() error { conn, err = (&net.Dialer{}).DialContext(ctx, network, addr); return err })
			return conn, err
		}}}
	resp, err := client.Get("http://127.0.0.1:10350/metrics")
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	for line := range strings.Lines(string(body)) {
		if text, ok := strings.CutPrefix(line, series+" "); ok {
			value, err = strconv.ParseFloat(strings.TrimSpace(text), 64)
			must(t, err)
		}
	}
	return value
}

// A NIC that is not a port of Open vSwitch carries no bridged pods: they wait with a reason, others are served. The
// agent detects a NIC that is attached externally.
func TestRootWithoutUplink(t *testing.T) {
	b := cluster(t)
	b.apply(t, poolYAML("detached", 4, 10, "110", "119"))
	refused := "node node1 puts no bridged pods onto the underlay: "
	before := strings.Count(b.log(t, node), refused)
	if out, err := b.NodeExec(labtest.Within(t, time.Minute), node, "fairlead-agent", "uplink", "restore"); err != nil {
		t.Fatalf("uplink restore: %v %s", err, out)
	}
	wait(t, time.Minute, func() string { // until then an ADD is served as before the restore
		if strings.Count(b.log(t, node), refused) == before {
			return "the agent does not refuse bridged pods"
		}
		return ""
	})
	b.apply(t, podYAML("a", node, "ippools: detached"), podYAML("routed", node))
	b.event(t, "a", "AddressAllocationFailed", refused)
	b.running(t, "routed")
	must(t, b.WaitReady(labtest.Within(t, 10*time.Second), node))
	if out, err := b.NodeExec(labtest.Within(t, time.Minute), node, "fairlead-agent", "uplink", "attach", "--nic", "eth0"); err != nil {
		t.Fatalf("uplink attach: %v %s", err, out)
	}
	b.running(t, "a")
	b.holdsExactly(t, 5*time.Second, "a")
}
