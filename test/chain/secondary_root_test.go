package chain

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// Settings of the tests' networks.
const (
	both    = `"ippools": ["second4", "second6"]`
	onePool = `"ippools": ["second4"]`
)

func secondPools() []string {
	return []string{poolYAML("second4", "second", "10.10.1.10", "10.10.1.29", "10.10.1.1", 24, 0),
		poolYAML("second6", "second", "fd10:10:1::10", "fd10:10:1::2f", "fd10:10:1::1", 64, 0)}
}

// Pods with a second interface of a real plugin reach each other over it, in both families; all verbs work, and the
// interfaces of one container do not affect each other.
func TestRootSecondaryPods(t *testing.T) {
	for _, cluster := range []lab.Cluster{lab.Directory, lab.Kube} {
		t.Run(string(cluster), func(t *testing.T) {
			if cluster == lab.Kube {
				ovstest.UserspaceOnly(t, "where Pods are read from makes no packet")
			}
			b := upSecondary(t, cluster)
			b.underlay(t)
			b.apply(t, secondPools()...)
			for _, main := range mains() {
				t.Run(main, func(t *testing.T) {
					if main != "bridge" && !b.kernelHas(t, main) {
						ovstest.KernelOnly(t, "this kernel has no "+main)
						t.Fatalf("the kernel of User-Mode Linux has no %s either: test/uml/kernel", main)
					}
					b.secondaryPods(t, main)
				})
			}
		})
	}
}

func (b *bed) secondaryPods(t *testing.T, main string) {
	conflist := secondaryNet("1.0.0", "net-"+main, main, both+`, "routes": [{"dst": "192.0.2.0/24"}], "dns": {"nameservers": ["10.10.1.1"]}`)
	var pods []*libcni.RuntimeConf
	var addrs [][]netip.Addr
	for range 2 {
		p := b.container(t)
		b.mustAdd(t, alone("1.0.0"), p)
		result := b.mustAdd(t, conflist, net1(p))
		if printed := text(t, result); !strings.Contains(printed, `"gateway":"10.10.1.1"`) ||
			!strings.Contains(printed, `"nameservers":["10.10.1.1"]`) && main == "bridge" {
			t.Errorf("the result is %s", printed)
		}
		pods, addrs = append(pods, p), append(addrs, ips(t, result))
		if route := b.in(t, p, "ip route show 192.0.2.0/24"); !strings.Contains(route, "via 10.10.1.1 dev net1") {
			t.Errorf("the route is %q", route)
		}
	}
	for _, to := range addrs[1] {
		b.in(t, pods[0], fmt.Sprintf("ping -c2 -i0.2 -w10 -I net1 %s", to))
	}
	hold := func(i int) []string { return holding("second", net1(pods[i]), "net-"+main, addrs[i]...) }
	b.holdsExactly(t, 0, hold(0), hold(1))
	again, err := b.ipam("ADD", net1(pods[0]), "net-"+main, both, "")
	if err != nil || !slices.Equal(ips(t, again), addrs[0]) {
		t.Errorf("ADD again: %v %v, before %v", again, err, addrs[0])
	}
	must(t, b.check(conflist, net1(pods[0])))
	must(t, b.check(alone("1.0.0"), pods[0]))

	// The main interface is deleted, the second stays; and vice versa.
	b.mustDel(t, alone("1.0.0"), pods[0])
	b.holdsExactly(t, 0, hold(0), hold(1))
	must(t, b.check(conflist, net1(pods[0])))
	for range 2 {
		b.mustDel(t, conflist, net1(pods[1]))
		b.holdsExactly(t, 0, hold(0))
	}
	must(t, b.check(alone("1.0.0"), pods[1]))
	unknown := *net1(pods[0])
	unknown.ContainerID = "unknown"
	b.mustDel(t, conflist, &unknown)
	b.holdsExactly(t, 0, hold(0))
	b.mustDel(t, conflist, net1(pods[0]))
	b.holdsExactly(t, 0)
	b.mustDel(t, alone("1.0.0"), pods[1])
	for _, p := range pods {
		b.end(t, p)
	}
}

// A request that cannot be served is rejected with a reason, and leaves nothing behind.
func TestRootSecondaryRefused(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	b := upSecondary(t, lab.Directory)
	b.apply(t, append(secondPools(), poolYAML("tagged", "", "10.20.0.10", "10.20.0.11", "10.20.0.1", 24, 7),
		poolYAML("bad", "", "10.30.0.10", "10.31.0.11", "10.30.0.1", 24, 0),
		poolYAML("tiny", "t", "10.40.0.10", "10.40.0.10", "10.40.0.1", 24, 0),
		poolYAML("tiny6", "t", "fd40::10", "fd40::10", "fd40::1", 64, 0),
		poolYAML("more", "t", "10.41.0.10", "10.41.0.10", "10.41.0.1", 24, 0),
		poolYAML("podcidr", "", "10.77.1.200", "10.77.1.210", "10.77.1.1", 24, 0))...)
	p := net1(b.container(t))
	for _, c := range []struct {
		keys, others string
		code         uint
		want         string
	}{
		{`"ippools": ["none"]`, "", 101, "asks for IPPool none: there is no such IPPool. Create it, or correct ipam.ippools"},
		{`"ippools": ["second4", "tagged"]`, "", 101, "IPPool tagged: its range 10.20.0.10-10.20.0.11 is in VLAN 7"},
		{`"ippools": ["bad"]`, "", 101, "IPPool bad: it is invalid: "},
		{`"ippools": ["podcidr"]`, "", 101, "IPPool podcidr: it does not allocate addresses: pool podcidr has address 10.77.1.200"},
		{`"ippool": ["second4"]`, "", 7, `unknown field "ippool"`},
		{onePool, `"runtimeConfig": {"ips": ["10.10.1.99"]},`, 101, "10.10.1.99 of the network: 10.10.1.99 is outside of pool second4"},
		{onePool, `"runtimeConfig": {"ips": ["10.10.1.1"]},`, 101, "is the gateway of pool second4"},
		{onePool, `"runtimeConfig": {"ips": ["10.10.1.11/16"]},`, 101, "with the mask /16, but pool second4 has /24"},
		{onePool, `"runtimeConfig": {"ips": ["fd10:10:1::11"]},`, 101, "no pool of ipam.ippools is IPv6"},
	} {
		_, err := b.ipam("ADD", p, "refused", c.keys, c.others)
		if err == nil || code(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: code %d, %v; want %d, %s", c.keys, c.others, code(err), err, c.code, c.want)
		}
		if c.others != "" {
			continue
		}
		status := uint(50)
		if c.code == 7 {
			status = 7
		}
		if _, err := b.ipam("STATUS", p, "refused", c.keys, ""); code(err) != status || !strings.Contains(err.Error(), c.want) {
			t.Errorf("STATUS with %s: %v", c.keys, err)
		}
	}
	b.holdsExactly(t, 0)
	_, err := b.ipam("STATUS", p, "refused", both, "")
	must(t, err)

	// Requested addresses are allocated; of two requests for the same one, only one succeeds.
	result, err := b.ipam("ADD", p, "wanted", both, `"runtimeConfig": {"ips": ["10.10.1.17/24", "fd10:10:1::17"]},`)
	must(t, err)
	wanted := []netip.Addr{netip.MustParseAddr("10.10.1.17"), netip.MustParseAddr("fd10:10:1::17")}
	if got := ips(t, result); !slices.Equal(got, wanted) {
		t.Errorf("given %v, want %v", got, wanted)
	}
	q := net1(b.container(t))
	_, err = b.ipam("ADD", q, "wanted", both, `"runtimeConfig": {"ips": ["10.10.1.17"]},`)
	if code(err) != 11 || !strings.Contains(err.Error(), "interface net1 of pod default/web waits for the address 10.10.1.17 of network wanted") {
		t.Errorf("%v", err)
	}
	b.holdsExactly(t, 0, holding("second", p, "wanted", wanted...))

	// When a pool is full, the next of its family is used; when all are full, no address of the other family is kept
	// either.
	const three = `"ippools": ["tiny", "tiny6", "more"]`
	var addrs []netip.Addr
	for _, c := range []*libcni.RuntimeConf{p, q} {
		result, err := b.ipam("ADD", c, "full", `"ippools": ["tiny", "more"]`, "")
		must(t, err)
		addrs = append(addrs, ips(t, result)...)
	}
	if fmt.Sprint(addrs) != "[10.40.0.10 10.41.0.10]" {
		t.Errorf("given %v", addrs)
	}
	last := net1(b.container(t))
	_, err = b.ipam("ADD", last, "full", three, "")
	if code(err) != 11 || !strings.Contains(err.Error(), "pool tiny is exhausted: 1 of 1 addresses are in use; pool more is exhausted") {
		t.Errorf("full: %v", err)
	}
	for _, h := range b.held(t) {
		if strings.Contains(h, last.ContainerID) {
			t.Errorf("an ADD that failed holds %s", h)
		}
	}
}

// Isolated networks may have the same addresses. CHECK reports differences from the result of ADD.
func TestRootSecondaryIsolatedAndCheck(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	b := upSecondary(t, lab.Directory)
	b.apply(t, poolYAML("red", "red", "10.10.1.10", "10.10.1.10", "10.10.1.1", 24, 0),
		poolYAML("blue", "blue", "10.10.1.10", "10.10.1.10", "10.10.1.1", 24, 0))
	p := net1(b.container(t))
	addr := netip.MustParseAddr("10.10.1.10")
	for _, color := range []string{"red", "blue"} {
		result, err := b.ipam("ADD", p, color, `"ippools": ["`+color+`"]`, "")
		must(t, err)
		if got := ips(t, result); !slices.Equal(got, []netip.Addr{addr}) {
			t.Fatalf("%s gave %v", color, got)
		}
	}
	red, blue := holding("red", p, "red", addr), holding("blue", p, "blue", addr)
	b.holdsExactly(t, 0, red, blue)
	check := func(color, prev string) error {
		_, err := b.ipam("CHECK", p, color, `"ippools": ["`+color+`"], "addresses": [{"address": "10.9.0.1/24"}]`,
			`"prevResult": {"cniVersion": "1.1.0", "ips": [`+prev+`]},`)
		return err
	}
	const right = `{"address": "10.9.0.1/24"}, {"address": "10.10.1.10/24"}`
	must(t, check("red", right))
	b.restart(t)
	must(t, check("red", right))
	for prev, want := range map[string]string{
		`{"address": "10.9.0.1/24"}`: "the container holds 10.10.1.10 of IPPool red",
		`{"address": "10.9.0.1/24"}, {"address": "10.10.1.10/24"}, {"address": "10.10.1.11/24"}`: "10.10.1.11, which interface net1 does not hold in network red",
		`{"address": "10.10.1.10/24"}`: "prevResult lacks the address 10.9.0.1/24",
	} {
		if err := check("red", prev); code(err) != 103 || !strings.Contains(err.Error(), want) {
			t.Errorf("CHECK with %s: %v, want %s", prev, err, want)
		}
	}
	_, err := b.ipam("DEL", p, "red", `"ippools": "nonsense"`, "")
	must(t, err)
	b.holdsExactly(t, 0, blue)
	if err := check("red", right); code(err) != 103 || !strings.Contains(err.Error(), "does not hold in network red") {
		t.Errorf("CHECK after DEL: %v", err)
	}
	must(t, check("blue", right))
}

// GC releases addresses of the network in its configuration only, and the main plugin's GC none of these.
func TestRootSecondaryGC(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	b := upSecondary(t, lab.Directory)
	b.apply(t, secondPools()...)
	var hold []map[string][]string // of each container, by network
	var pods []*libcni.RuntimeConf
	for range 2 {
		p := net1(b.container(t))
		of := map[string][]string{}
		for _, n := range []string{"a", "b", "chain"} { // chain is the main network's name, too
			result, err := b.ipam("ADD", p, n, onePool, "")
			must(t, err)
			of[n] = holding("second", p, n, ips(t, result)...)
		}
		pods, hold = append(pods, p), append(hold, of)
	}
	gc := func(network, valid string) error {
		_, err := b.ipam("GC", &libcni.RuntimeConf{}, network, onePool, valid)
		return err
	}
	if err := gc("a", ""); code(err) != 7 || !strings.Contains(err.Error(), "nothing was removed") {
		t.Errorf("GC without a list: %v", err)
	}
	must(t, b.gc(alone("1.1.0")))
	b.holdsExactly(t, 0, hold[0]["a"], hold[0]["b"], hold[0]["chain"], hold[1]["a"], hold[1]["b"], hold[1]["chain"])
	must(t, gc("a", fmt.Sprintf(`"cni.dev/valid-attachments": [{"containerID": %q, "ifname": "net1"}, {"containerID": %q, "ifname": "net2"}],`,
		pods[1].ContainerID, pods[0].ContainerID)))
	b.holdsExactly(t, 0, hold[0]["b"], hold[0]["chain"], hold[1]["a"], hold[1]["b"], hold[1]["chain"])
	must(t, gc("chain", `"cni.dev/valid-attachments": [],`))
	b.holdsExactly(t, 0, hold[0]["b"], hold[1]["a"], hold[1]["b"])
}

// The node reclaims addresses of containers that are gone, and of no running one: no port shows either of them.
func TestRootSecondaryReclaim(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	b := upSecondary(t, lab.Directory)
	b.apply(t, secondPools()...)
	add := func() (*libcni.RuntimeConf, []string) {
		p := net1(b.container(t))
		result, err := b.ipam("ADD", p, "a", both, "")
		must(t, err)
		return p, holding("second", p, "a", ips(t, result)...)
	}
	gone, _ := add()
	lives, held := add()
	b.end(t, gone)
	b.restart(t) // checks at its start, and then every agent.reconcile
	b.holdsExactly(t, 60*time.Second, held)
	path, err := b.lab.AgentLog(b.node.Name)
	must(t, err)
	eventually(t, 10*time.Second, func() error { // it is logged when both are released
		log, err := os.ReadFile(path)
		if !strings.Contains(string(log), "reclaimed the address of a deleted pod") {
			return fmt.Errorf("the log does not report it, %v", err)
		}
		return nil
	})

	// After a reboot no record of the previous boot counts as in use, whatever its path now refers to.
	must(t, b.lab.Reboot(labtest.Within(t, time.Minute), b.node.Name))
	must(t, b.node.MakeNetns(lives.NetNS))
	again := b.container(t)
	must(t, b.lab.AgentStart(labtest.Within(t, 20*time.Second), b.node.Name))
	b.ready(t)
	result, err := b.ipam("ADD", net1(again), "a", both, "")
	must(t, err)
	b.holdsExactly(t, 60*time.Second, holding("second", net1(again), "a", ips(t, result)...))
}

// An allocation that is deleted under a running container is recreated, and neither this agent nor the next gives its
// address to another container of the node. Once the container is gone, or deleted, its address is free.
func TestRootSecondaryLost(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	b := upSecondary(t, lab.Directory)
	b.apply(t, poolYAML("red", "red", "10.10.1.10", "10.10.1.10", "10.10.1.1", 24, 0))
	const red = `"ippools": ["red"]`
	lives, next := net1(b.container(t)), net1(b.container(t))
	result, err := b.ipam("ADD", lives, "red", red, "")
	must(t, err)
	held := holding("red", lives, "red", ips(t, result)...)
	refused := func(when string) {
		t.Helper()
		result, err := b.ipam("ADD", next, "red", red, "")
		if err == nil || code(err) != 11 {
			t.Fatalf("%s: ADD of another container: %v, %v, want error code 11", when, result, err)
		}
		b.holdsExactly(t, 0, held)
	}
	refused("nothing lost")
	b.tells(t, 1, 0)
	b.lose(t)
	refused("lost a moment ago")
	b.tells(t, 2, 1)
	b.lose(t)
	b.restart(t)
	b.holdsExactly(t, 60*time.Second, held) // recreated without an ADD
	b.tells(t, 2, 2)
	must(t, b.lab.AgentKill(labtest.Within(t, 10*time.Second), b.node.Name))
	b.lose(t)
	b.restart(t)
	refused("lost while no agent ran")
	b.tells(t, 3, 3)

	b.lose(t)
	_, err = b.ipam("DEL", lives, "red", red, "")
	must(t, err)
	result, err = b.ipam("ADD", next, "red", red, "")
	must(t, err)
	held = holding("red", next, "red", ips(t, result)...)
	b.holdsExactly(t, 0, held)
	b.lose(t)
	b.end(t, next) // and no DEL
	b.restart(t)
	eventually(t, 10*time.Second, func() (err error) { // the agent may have recreated it before the container's end
		if result, err = b.ipam("ADD", lives, "red", red, ""); err != nil && code(err) != 11 {
			t.Fatal(err)
		}
		return err
	})
	b.holdsExactly(t, 0, holding("red", lives, "red", ips(t, result)...))
}

// tells waits until the agents' log has so many lines about a container that got no address, and about a lost
// allocation that was recreated: one for each.
func (b *bed) tells(t *testing.T, refusals, recreations int) {
	t.Helper()
	path, err := b.lab.AgentLog(b.node.Name)
	must(t, err)
	refused := regexp.MustCompile(`"CNI call failed" .*verb="ADD" code=11 error="interface net1 of pod \S+ gets no ` +
		`address in network red: pool red is exhausted`)
	recreated := regexp.MustCompile(`"recreated a lost allocation" .*network="red" address="10.10.1.10" pool="red"`)
	eventually(t, 10*time.Second, func() error {
		log, err := os.ReadFile(path)
		if r, l := len(refused.FindAll(log, -1)), len(recreated.FindAll(log, -1)); r != refusals || l != recreations {
			return fmt.Errorf("the log reports %d refusals, not %d, and %d recreations, not %d, %v", r, refusals, l, recreations, err)
		}
		return nil
	})
}

// lose deletes all allocations, as restoring an earlier backup of the cluster's database does.
func (b *bed) lose(t *testing.T) {
	t.Helper()
	must(t, b.node.Do(func() error {
		d, err := allocation.NewDirectory(allocation.DefaultDirectory)
		if err != nil {
			return err
		}
		list, err := d.List(t.Context(), allocation.Filter{})
		for _, a := range list {
			err = errors.Join(err, d.Delete(t.Context(), a))
		}
		return err
	}))
}

// The agent is killed at any point of ADD or DEL: the runtime's retry succeeds, nothing else is left, and no other
// container gets the address.
func TestRootSecondaryKilled(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	b := upSecondary(t, lab.Directory)
	b.apply(t, secondPools()...)
	stays := net1(b.container(t))
	result, err := b.ipam("ADD", stays, "a", both, "")
	must(t, err)
	kept := holding("second", stays, "a", ips(t, result)...)
	found := map[string]int{}
	count := func(verb string) { found[fmt.Sprintf("%s: %d addresses", verb, len(b.held(t))-len(kept))]++ }
	again := 0
	for n, inAdd, inDel := 0, true, true; inAdd || inDel; n++ {
		p := net1(b.container(t))
		inAdd = b.killAt(t, n, func() error { _, err := b.ipam("ADD", p, "a", both, ""); return err })
		count("ADD")
		b.restart(t)
		result, err := b.ipam("ADD", p, "a", both, "")
		must(t, err)
		b.holdsExactly(t, 0, kept, holding("second", p, "a", ips(t, result)...))
		inDel = b.killAt(t, n, func() error { _, err := b.ipam("DEL", p, "a", both, ""); return err })
		count("DEL")
		if n == 3 { // no further DEL: the missing network namespace is the evidence
			b.end(t, p)
			b.restart(t)
			b.holdsExactly(t, 60*time.Second, kept)
			continue
		}
		b.restart(t)
		_, err = b.ipam("DEL", p, "a", both, "")
		must(t, err)
		b.holdsExactly(t, 0, kept)
		b.end(t, p)
		if !inAdd && !inDel && len(found) < 6 && again < 3 { // on a busy machine a kill may come after the next change
			n, inAdd, again = -1, true, again+1
		}
	}
	t.Logf("when the agent was killed: %v", found)
	for _, verb := range []string{"ADD", "DEL"} {
		for n := range 3 {
			if found[fmt.Sprintf("%s: %d addresses", verb, n)] == 0 {
				t.Errorf("no kill in %s came when there were %d addresses: %v", verb, n, found)
			}
		}
	}
}

// killAt kills the agent at the n-th change in its directory of allocations while call runs, or before the first. It
// returns false if there were fewer changes, and kills the agent then.
func (b *bed) killAt(t *testing.T, n int, call func() error) (within bool) {
	t.Helper()
	watch, err := fsnotify.NewWatcher()
	must(t, err)
	defer watch.Close()
	must(t, b.node.Do(func() error { return watch.Add(allocation.DefaultDirectory) }))
	agent, err := b.lab.AgentState(t.Context(), b.node.Name)
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- call() }() // fails in most cases
	for seen := 0; seen < n; {
		select {
		case <-watch.Events:
			seen++
		case err := <-done:
			must(t, err)
			must(t, unix.Kill(agent.PID, unix.SIGKILL))
			return false
		case <-time.After(time.Minute):
			t.Fatalf("nothing comes after change %d", seen)
		}
	}
	must(t, unix.Kill(agent.PID, unix.SIGKILL))
	<-done
	return true
}

// A DEL does not wait for an API server that is unreachable: the addresses are released once it is reachable again, by
// the agent that runs then. The interfaces of one container have a file each.
func TestRootSecondaryOwed(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	b := upSecondary(t, lab.Kube)
	b.apply(t, secondPools()...)
	plane, err := b.lab.Plane()
	must(t, err)
	p := net1(b.container(t))
	var kept []string
	for _, n := range []string{"a", "b", "c"} {
		result, err := b.ipam("ADD", p, n, both, "")
		must(t, err)
		if n == "c" {
			kept = holding("second", p, n, ips(t, result)...)
		}
	}
	must(t, plane.Kill(labtest.Within(t, 10*time.Second), controlplane.APIServer))
	for _, n := range []string{"a", "b"} {
		_, err := b.ipam("DEL", p, n, both, "")
		must(t, err)
	}
	files, err := b.run(nil, "ls /var/lib/fairlead/pending-releases")
	if must(t, err); len(strings.Fields(files)) != 2 {
		t.Errorf("pending releases are %q, want two files", files)
	}
	if _, err := b.ipam("ADD", net1(b.container(t)), "a", both, ""); code(err) != 11 {
		t.Errorf("ADD without the API server: %v", err)
	}
	eventually(t, 30*time.Second, func() error {
		if _, err := b.ipam("STATUS", p, "a", both, ""); code(err) != 50 {
			return fmt.Errorf("STATUS without the API server: %w", err)
		}
		return nil
	})
	must(t, b.lab.AgentKill(labtest.Within(t, 10*time.Second), b.node.Name))
	must(t, plane.Start(labtest.Within(t, time.Minute), controlplane.APIServer, nil))
	b.restart(t)
	b.holdsExactly(t, 90*time.Second, kept)
}

// The examples in docs/secondary-networks.md work as they are, except for the names of the node's interfaces. The one
// of Antrea's page whose gateways are in no subnet is passed through, and the kernel rejects it.
func TestRootSecondaryDocs(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	b := upSecondary(t, lab.Directory)
	b.underlay(t)
	page, err := os.ReadFile("../../docs/secondary-networks.md")
	must(t, err)
	blocks := func(language string) (out []string) {
		for _, block := range strings.Split(string(page), "```"+language+"\n")[1:] {
			block, _, _ = strings.Cut(block, "```")
			out = append(out, strings.NewReplacer(`"eth0"`, `"under0"`, `"br0"`, `"second0"`).Replace(block))
		}
		return out
	}
	b.apply(t, blocks("yaml")[0])
	_, definition, _ := strings.Cut(blocks("yaml")[1], "config: |\n")
	definition, _, _ = strings.Cut(definition, "---")
	confs := append(blocks("json"), strings.Replace(definition, "{", `{"name": "ipv4-net-1", `, 1)) // as Multus does
	want := []string{"10.10.1.", "10.10.1. 3ffe:ffff:1:1ff::1", "10.10.1. 10.10.0.1 3ffe:ffff:0:1ff::1", "10.10.0.1", "10.10.1."}
	if len(confs) != len(want) {
		t.Fatalf("the page has %d configurations, and this test knows %d", len(confs), len(want))
	}
	for i, conf := range confs {
		p := net1(b.container(t))
		conflist := asList(conf)
		result, err := b.add(conflist, p)
		if err != nil {
			t.Errorf("%s: %v", conf, err)
			continue
		}
		got := ips(t, result)
		for j, prefix := range strings.Fields(want[i]) {
			if j >= len(got) || !strings.HasPrefix(got[j].String(), prefix) {
				t.Errorf("%s gives %v, want %s", conf, got, want[i])
			}
		}
		b.mustDel(t, conflist, p)
	}
	p := net1(b.container(t))
	refused := strings.NewReplacer("10.10.1.5", "10.10.5.1", "3ffe:ffff:0:01ff::fe", "3ffe:ffff:0::1").Replace(confs[2])
	if refused == confs[2] {
		t.Fatal("the page's third example is another now")
	}
	if _, err := b.add(asList(refused), p); err == nil || !strings.Contains(err.Error(), "failed to add route") {
		t.Errorf("gateways in no subnet: %v", err)
	}
	b.mustDel(t, asList(refused), p) // as a runtime does then
	b.holdsExactly(t, 0)
}

// asList is a configuration of one plugin as a configuration list.
func asList(conf string) string {
	version := strings.Split(conf, `"cniVersion": "`)[1][:5]
	name, _, _ := strings.Cut(strings.Split(conf, `"name": "`)[1], `"`)
	return fmt.Sprintf(`{"cniVersion": %q, "name": %q, "plugins": [%s]}`, version, name, conf)
}
