package pools

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
)

const pendingDir = "/var/lib/fairlead/pending-releases"

// pendingReleases is what is in the node's directory of deferred releases.
func (b *bed) pendingReleases(t *testing.T) []string {
	t.Helper()
	out, err := b.NodeExec(labtest.Within(t, 20*time.Second), node, "sh", "-c", "ls "+pendingDir+" 2>/dev/null || true")
	must(t, err)
	return strings.Fields(out)
}

// A DEL does not wait for an API server that is unreachable. The pod's addresses are released once it is reachable
// again, by the agent that runs then.
func TestRootDELWhileAPIServerUnreachable(t *testing.T) {
	b := cluster(t)
	b.apply(t, poolYAML("away", 4, 10, "110", "119"), poolYAML("away6", 6, 10, "1100", "110f"),
		podYAML("a", node, `ippools: "away,away6"`), podYAML("routed", node))
	b.running(t, "a")
	b.running(t, "routed")
	host := link.HostName(b.record(t, "a").ContainerID, "eth0")
	must(t, b.plane.Kill(labtest.Within(t, 10*time.Second), controlplane.APIServer))
	for _, pod := range []string{"a", "routed"} {
		if out, err := b.CNI(labtest.Within(t, 30*time.Second), node, lab.DEL, "default/"+pod); err != nil {
			t.Errorf("DEL of %s: %v %s", pod, err, out)
		}
	}
	if files := b.pendingReleases(t); len(files) != 1 {
		t.Errorf("pending releases are %v, want one file, of a", files)
	}
	// The agent dies between removing the port and the interface: the record of what was deleted is not restored.
	wait(t, 20*time.Second, func() string {
		if out, err := b.NodeExec(labtest.Within(t, 10*time.Second), node, "ovs-vsctl", "port-to-br", host); err == nil {
			return "the port is still on " + out
		}
		return ""
	})
	must(t, b.AgentKill(labtest.Within(t, 10*time.Second), node))
	must(t, b.plane.Start(labtest.Within(t, time.Minute), controlplane.APIServer, nil))
	if out, err := b.NodeExec(labtest.Within(t, 10*time.Second), node, "sh", "-c", fmt.Sprintf(
		"ip link show %[1]s || ip link add %[1]s type veth peer name deleted; ip link set %[1]s group %[2]d", host, link.Group)); err != nil {
		t.Fatal(err, out)
	}
	b.restart(t)
	b.holdsExactly(t, 90*time.Second)
	wait(t, 30*time.Second, func() string {
		if files := b.pendingReleases(t); len(files) > 0 {
			return fmt.Sprintf("still pending: %v", files)
		}
		return ""
	})
	// ADD for the same sandbox: nothing of the deleted attachment is used.
	must(t, b.WaitReady(labtest.Within(t, time.Minute), node))
	if out, err := b.CNI(labtest.Within(t, 30*time.Second), node, lab.ADD, "default/a"); err != nil {
		t.Errorf("ADD of the same sandbox: %v %s", err, out)
	}
}

// killAgent kills the agent with SIGKILL and starts it again.
func (b *bed) killAgent(t *testing.T) {
	t.Helper()
	must(t, b.AgentKill(labtest.Within(t, 10*time.Second), node))
	b.restart(t)
}

// restart starts an agent when the killed one is gone.
func (b *bed) restart(t *testing.T) {
	t.Helper()
	wait(t, 10*time.Second, func() string {
		if s, err := b.AgentState(t.Context(), node); err != nil || s.PID != 0 || s.Exit == nil {
			return fmt.Sprintf("the agent is %s, %v", s, err)
		}
		return ""
	})
	must(t, b.AgentStart(labtest.Within(t, 10*time.Second), node))
}

// The agent is killed at any point of ADD or DEL of bridged pods: in the end the allocations are those of the pods, and
// no address has two owners.
func TestRootKilledInADDAndDEL(t *testing.T) {
	b := cluster(t)
	b.apply(t, poolYAML("small", 4, 20, "110", "117"), poolYAML("small6", 6, 20, "1100", "1107"))
	b.apply(t, podYAML("near", node, `ippools: "small,small6"`), podYAML("far", "node2", `ippools: "small,small6"`))
	stays := []string{b.running(t, "near")[0].String(), b.running(t, "far")[0].String()}
	pods := []string{"kx", "ky"}
	var manifests []string
	for _, p := range pods {
		manifests = append(manifests, podYAML(p, node, `ippools: "small,small6"`))
	}
	atKill := map[string]int{}
	const kills = 8
	for i := range kills {
		// An ADD takes some 300 ms here, most of it for probing the underlay, and a DEL 50 ms.
		b.apply(t, manifests...)
		b.afterBegin(t, "kx", sandbox.Creating, time.Duration(i)*70*time.Millisecond)
		b.killNow(t, atKill, "ADD")
		for _, p := range pods {
			b.running(t, p)
		}
		b.noneTwice(t)
		b.holdsExactly(t, 5*time.Second, "near", "far", "kx", "ky")
		for _, p := range pods {
			must(t, b.client.CoreV1().Pods("default").Delete(labtest.Within(t, 20*time.Second), p, metav1.DeleteOptions{}))
		}
		b.afterBegin(t, "kx", sandbox.Terminating, time.Duration(i)*10*time.Millisecond)
		b.killNow(t, atKill, "DEL")
		b.gone(t, 60*time.Second, pods...)
		b.holdsExactly(t, 60*time.Second, "near", "far")
	}
	t.Logf("when the agent was killed, of two pods: %v", atKill)
	for i, p := range []string{"near", "far"} {
		if now := b.running(t, p)[0].String(); now != stays[i] {
			t.Errorf("%s had %s and has %s", p, stays[i], now)
		}
	}
	wait(t, 30*time.Second, func() string { // a file goes after the addresses in it
		if files := b.pendingReleases(t); len(files) > 0 {
			return fmt.Sprintf("pending releases are %v", files)
		}
		return ""
	})
}

// afterBegin waits until the runtime is in that state, or past it, and then for d.
func (b *bed) afterBegin(t *testing.T, pod string, state sandbox.State, d time.Duration) {
	t.Helper()
	deadline := time.Now().Add(labtest.Limit(20 * time.Second))
	for {
		rec := b.record(t, pod)
		if rec.State == state || state == sandbox.Creating && rec.State == sandbox.Running ||
			state == sandbox.Terminating && rec.ContainerID == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is %s", pod, rec.State)
		}
		time.Sleep(time.Millisecond)
	}
	time.Sleep(d)
}

// killNow kills the agent, counts the states at that moment, and starts it again.
func (b *bed) killNow(t *testing.T, atKill map[string]int, verb string) {
	t.Helper()
	must(t, b.AgentKill(labtest.Within(t, 10*time.Second), node))
	allocated := 0
	for _, h := range b.held(t) {
		if strings.Contains(h, "/k") {
			allocated++
		}
	}
	ports, err := b.NodeExec(labtest.Within(t, 20*time.Second), node, "ovs-vsctl", "--no-heading", "--columns=name", "find", "Port",
		"external_ids:fairlead=pod", "external_ids:fairlead-container-id!="+api.ReachEnd)
	must(t, err)
	atKill[fmt.Sprintf("%s: %d addresses, %d ports", verb, allocated, len(strings.Fields(ports))-1)]++
	b.restart(t)
}

// noneTwice expects every address to belong to one pod.
func (b *bed) noneTwice(t *testing.T) {
	t.Helper()
	records, err := b.Records().List()
	must(t, err)
	var all []string
	for _, r := range records {
		all = append(all, r.IPs...)
	}
	slices.Sort(all)
	if once := slices.Compact(slices.Clone(all)); len(once) != len(all) {
		t.Errorf("an address is given twice: %v", all)
	}
}

// A runtime that dies with the agent calls no DEL: when the sandbox is gone, the node treats its pod as gone and
// releases the address. An address whose sandbox exists is kept, and so is one of which nothing is known.
func TestRootNodeIsTheWitness(t *testing.T) {
	b := cluster(t)
	b.apply(t, poolYAML("witness", 4, 10, "110", "119"), podYAML("a", node, "ippools: witness"))
	b.running(t, "a")
	rec := b.record(t, "a")
	boot, err := b.NodeExec(labtest.Within(t, 10*time.Second), node, "cat", "/proc/sys/kernel/random/boot_id")
	must(t, err)
	boot = strings.TrimSpace(boot)
	b.apply(t, allocation("192.168.110.1", "x", "", "")) // no address of the pool: ignored
	b.apply(t, allocation("192.168.110.115", "gone", "/run/netns/gone", boot), allocation("192.168.110.116", "before", rec.Netns, "other"),
		allocation("192.168.110.117", "lives", rec.Netns, boot), allocation("192.168.110.118", "unknown", "", ""))
	b.dieInADDs(t)
	b.restart(t) // checks at its start, and then every agent.reconcile
	wait(t, 90*time.Second, func() string {
		held := strings.Join(b.held(t), ", ")
		for _, dead := range []string{"192.168.110.115", "192.168.110.116", "annotated/"} {
			if strings.Contains(held, dead) {
				return "still held: " + held
			}
		}
		for _, ip := range []string{"192.168.110.117", "192.168.110.118", b.record(t, "a").IPs[0]} {
			if !strings.Contains(held, ip) {
				t.Fatalf("%s was released although its owner may live: %s", ip, held)
			}
		}
		return ""
	})
	wait(t, 30*time.Second, func() string { // it is logged when all of a pass are released
		if n := strings.Count(b.log(t, node), "reclaimed the address of a deleted pod"); n < 2 {
			return fmt.Sprintf("the log reports %d addresses that were reclaimed", n)
		}
		return ""
	})
	wait(t, 30*time.Second, func() string {
		out, err := b.NodeExec(labtest.Within(t, 20*time.Second), node, "ovs-vsctl", "--bare", "--columns=name", "find", "Port",
			"external_ids:fairlead=pod", "external_ids:fairlead-container-id!="+api.ReachEnd)
		must(t, err)
		if ports := strings.Fields(out); len(ports) != 1 {
			return fmt.Sprintf("ports of pods are %v, want that of a", ports)
		}
		return ""
	})
}

// allocation is one of pool witness and network fairlead, created externally.
func allocation(ip, container, netns, boot string) string {
	return fmt.Sprintf("apiVersion: ipam.fairlead.dev/v1alpha1\nkind: IPAllocation\nmetadata: {name: %[1]s}\nspec:\n"+
		"  address: %[1]s\n  pool: witness\n  phase: Allocated\n"+
		"  owner: {containerID: %[2]q, ifName: eth0, network: fairlead, node: %[3]s, netns: %[4]q, bootID: %[5]q}\n",
		ip, container, node, netns, boot)
}

// GC releases the addresses of containers that the runtime does not list, recorded or not, in its network only.
func TestRootGC(t *testing.T) {
	b := cluster(t)
	b.apply(t, poolYAML("witness", 4, 10, "110", "119"), podYAML("a", node, "ippools: witness", "pod-ips: 192.168.110.111"),
		podYAML("b", node, "ippools: witness", "pod-ips: 192.168.110.112"))
	b.running(t, "a")
	b.running(t, "b")
	other := strings.Replace(allocation("192.168.110.115", "y", "", ""), "network: fairlead", "network: other", 1)
	elsewhere := strings.Replace(allocation("192.168.110.116", "z", "", ""), "node: "+node, "node: node2", 1)
	secondary := strings.Replace(allocation("192.168.110.117", "w", "", ""), "ifName: eth0", "ifName: net1, ipamOnly: true", 1)
	b.apply(t, allocation("192.168.110.113", "x", "", ""), other, elsewhere, secondary,
		allocation("192.168.110.114", b.record(t, "a").ContainerID, "", "")) // incomplete, and its container is listed
	if out, err := b.CNI(labtest.Within(t, 30*time.Second), node, lab.GC, "default/b"); err != nil {
		t.Fatalf("GC: %v %s", err, out)
	}
	want := []string{"192.168.110.111 default/a", "192.168.110.114 /", "192.168.110.115 /", "192.168.110.116 /", "192.168.110.117 /"}
	if got := b.held(t); !slices.Equal(got, want) {
		t.Errorf("after GC held are %q, want %q", got, want)
	}
	// The kernel's interface is gone as well.
	b.remove(t, "b")
	b.remove(t, "a")
	for _, ip := range []string{"114", "115", "116", "117"} {
		must(t, b.ipallocations.Delete(labtest.Within(t, 20*time.Second), "192.168.110."+ip, metav1.DeleteOptions{}))
	}
}

// dieInADDs kills the agent while ADDs run, each at another step, and removes their sandboxes. There is no DEL.
func (b *bed) dieInADDs(t *testing.T) {
	t.Helper()
	b.apply(t, annotated, poolYAML("ns10", 4, 10, "100", "109"))
	h, err := b.Host(node)
	must(t, err)
	var answered sync.WaitGroup
	names := []string{"annotated/h1", "annotated/h2", "annotated/h3", "annotated/h4", "annotated/h5"}
	for _, name := range names {
		answered.Go(func() {
			b.CNI(t.Context(), node, lab.ADD, name) // fails in most cases: the agent dies
		})
		time.Sleep(70 * time.Millisecond)
	}
	must(t, b.AgentKill(labtest.Within(t, 10*time.Second), node))
	answered.Wait()
	t.Logf("when the agent was killed: %v", b.held(t))
	for _, name := range names {
		rec := b.record(t, name)
		must(t, b.Records().Forget(name))
		must(t, h.RemoveNetns(rec.Netns))
	}
}

// Allocations and records that are lost under a running pod are recreated.
func TestRootLostUnderALivingPod(t *testing.T) {
	b := cluster(t)
	b.apply(t, poolYAML("lost", 4, 10, "110", "119"), poolYAML("lost6", 6, 10, "1200", "120f"),
		podYAML("a", node, `ippools: "lost,lost6"`))
	b.running(t, "a")
	rec := b.record(t, "a")
	before := b.portRecord(t, rec)
	lose := func() {
		t.Helper()
		must(t, deleteAll(labtest.Within(t, 20*time.Second), b.ipallocations))
	}
	lose()
	// Another pod requests the address meanwhile, and does not get it, whether or not the allocation is recreated yet.
	b.apply(t, podYAML("thief", node, "ippools: lost", "pod-ips: "+rec.IPs[0]))
	wait(t, 30*time.Second, func() string {
		got := b.events(t, "thief", "AddressAllocationFailed")
		if !strings.Contains(got, rec.IPs[0]) || !strings.Contains(got, "pod default/a of this node has the address") &&
			!strings.Contains(got, "is allocated to pod default/a on node "+node) {
			return fmt.Sprintf("the Event says %q, want that default/a has %s", got, rec.IPs[0])
		}
		return ""
	})
	b.holdsExactly(t, 40*time.Second, "a")
	b.remove(t, "thief")
	wait(t, 30*time.Second, func() string { // the agent may have recreated it before CHECK looks
		lose()
		out, err := b.CNI(labtest.Within(t, 30*time.Second), node, lab.CHECK, "default/a")
		if err == nil || !strings.Contains(out, "the IPAllocation "+rec.IPs[0]+" is gone") {
			return fmt.Sprintf("CHECK of a pod whose allocation is gone: %v %s", err, out)
		}
		return ""
	})
	b.killAgent(t)
	b.holdsExactly(t, 60*time.Second, "a")

	must(t, b.AgentStop(labtest.Within(t, 20*time.Second), node))
	_, err := b.NodeExec(labtest.Within(t, 20*time.Second), node, "sh", "-c",
		"ovs-vsctl del-port $(ovs-vsctl --bare --columns=name find Port external_ids:fairlead-container-id="+rec.ContainerID+")")
	must(t, err)
	must(t, b.AgentStart(labtest.Within(t, 20*time.Second), node))
	must(t, b.WaitReady(labtest.Within(t, time.Minute), node)) // ports are recreated before CNI is served
	wait(t, 60*time.Second, func() string {
		if now := b.portRecord(t, rec); now != before {
			return fmt.Sprintf("the record is\n%s\nwant\n%s", now, before)
		}
		return ""
	})
	b.holdsNow(t, "a")
	if out, err := b.CNI(labtest.Within(t, 30*time.Second), node, lab.CHECK, "default/a"); err != nil {
		t.Errorf("CHECK: %v %s", err, out)
	}
}

// portRecord is the record of the pod's port in OVSDB.
func (b *bed) portRecord(t *testing.T, rec *sandbox.Record) string {
	t.Helper()
	out, err := b.NodeExec(labtest.Within(t, 20*time.Second), node, "ovs-vsctl", "--columns=name,external_ids", "find", "Port",
		"external_ids:fairlead-container-id="+rec.ContainerID)
	must(t, err)
	return out
}

// After a power failure no address of the boot before is in use, and pods are recreated.
func TestRootReboot(t *testing.T) {
	b := cluster(t)
	b.apply(t, poolYAML("boot", 4, 10, "110", "119"), podYAML("a", node, "ippools: boot"), podYAML("far", "node2", "ippools: boot"))
	b.running(t, "a")
	b.running(t, "far")
	before := b.record(t, "a").ContainerID
	must(t, b.Reboot(labtest.Within(t, time.Minute), node))
	must(t, b.AgentStart(labtest.Within(t, 20*time.Second), node))
	must(t, b.WaitReady(labtest.Within(t, time.Minute), node))
	wait(t, 60*time.Second, func() string {
		if rec := b.record(t, "a"); rec.State != sandbox.Running || rec.ContainerID == before {
			return fmt.Sprintf("a is %s: %s", rec.State, rec.LastError)
		}
		return ""
	})
	b.holdsExactly(t, 60*time.Second, "a", "far")
}
