package chain

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

// mains are the reference plugins under which Fairlead is the IPAM plugin, built from the version in go.mod.
func mains() []string { return []string{"bridge", "macvlan", "ipvlan"} }

// bed is a node with a runtime that has secondary networks. It has no bridged pods.
type bed struct {
	runtime
	cluster lab.Cluster
}

// upSecondary creates a lab of one node that ends with the test, with the reference plugins beside Fairlead's.
func upSecondary(t *testing.T, cluster lab.Cluster) *bed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a lab needs root")
	}
	l := upLab(t, lab.Options{Nodes: 1, Cluster: cluster, Config: []byte("ipam: {coolingPeriod: 1s}")})
	h, err := l.Host(l.Nodes()[0])
	must(t, err)
	b := &bed{runtime{lab: l, node: h}, cluster}
	built := filepath.Join(binDir, "cni") // User-Mode Linux finds them there
	for _, p := range mains() {
		if _, err := os.Stat(filepath.Join(built, p)); err != nil {
			out, err := exec.CommandContext(labtest.Within(t, 5*time.Minute), "go", "build", "-o", built+"/",
				"github.com/containernetworking/plugins/plugins/main/"+p).CombinedOutput()
			if err != nil {
				t.Fatalf("building the reference plugin %s: %v\n%s", p, err, out)
			}
		}
		data, err := os.ReadFile(filepath.Join(built, p))
		must(t, err)
		path := h.Private("/opt/cni/bin/" + p)
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) { // a link to Debian's plugin
			t.Fatal(err)
		}
		must(t, os.WriteFile(path, data, 0o755))
	}
	b.ready(t)
	return b
}

// ready waits until the agent answers CNI requests.
func (b *bed) ready(t *testing.T) {
	t.Helper()
	must(t, b.lab.WaitReady(labtest.Within(t, time.Minute), b.node.Name))
	eventually(t, 10*time.Second, func() error { return b.status(alone("1.1.0")) })
}

// kernelHas reports whether the kernel can create interfaces of a kind.
func (b *bed) kernelHas(t *testing.T, kind string) bool {
	t.Helper()
	p := b.container(t)
	defer b.end(t, p)
	b.in(t, p, "ip link add parent type veth peer name other")
	_, err := b.run(p, "ip link add link parent name probe type "+kind)
	return err == nil
}

// secondaryNet is a network of a main plugin with Fairlead as its IPAM plugin; more are keys of ipam.
func secondaryNet(version, name, main, more string) string {
	return fmt.Sprintf(`{"cniVersion": %q, "name": %q, "plugins": [%s]}`, version, name, plugin(main, more))
}

func plugin(main, more string) string {
	keys := map[string]string{"bridge": `"bridge": "second0"`, "macvlan": `"master": "under0", "mode": "bridge"`,
		"ipvlan": `"master": "under0", "mode": "l2"`}
	return fmt.Sprintf(`{"type": %q, %s, "ipam": {"type": "antrea", %s}}`, main, keys[main], more)
}

// underlay creates an interface on the node for macvlan and ipvlan, and a bridge with a fixed MAC: the plugin bridge
// fails at CHECK when ports have changed it.
func (b *bed) underlay(t *testing.T) {
	t.Helper()
	for _, line := range []string{"ip link add under0 type veth peer name under1", "ip link set under0 up", "ip link set under1 up",
		"ip link add second0 address 02:00:00:00:00:5e type bridge"} {
		_, err := b.run(nil, line)
		must(t, err)
	}
}

// poolYAML is an IPPool. The network may be empty.
func poolYAML(name, network, first, last, gateway string, bits, vlan int) string {
	annotations := ""
	if network != "" {
		annotations = ", annotations: {ipam.fairlead.dev/network: " + network + "}"
	}
	return fmt.Sprintf("apiVersion: crd.antrea.io/v1beta1\nkind: IPPool\nmetadata: {name: %s%s}\nspec:\n"+
		"  ipRanges: [{start: %q, end: %q}]\n  subnetInfo: {gateway: %q, prefixLength: %d, vlan: %d}\n",
		name, annotations, first, last, gateway, bits, vlan)
}

func (b *bed) apply(t *testing.T, manifests ...string) {
	t.Helper()
	_, err := b.lab.Apply("pools", []byte(strings.Join(manifests, "\n---\n")))
	must(t, err)
}

// net1 is the second interface of a container.
func net1(p *libcni.RuntimeConf) *libcni.RuntimeConf {
	second := *p
	second.IfName = "net1"
	return &second
}

// allocations are all in the API.
func (b *bed) allocations(t *testing.T) (list []api.IPAllocation) {
	t.Helper()
	if b.cluster == lab.Kube {
		objects, err := b.lab.Objects()
		must(t, err)
		answer, err := objects.Resource("ipallocations.v1alpha1.ipam.fairlead.dev").List(labtest.Within(t, 20*time.Second),
			metav1.ListOptions{})
		must(t, err)
		data, err := answer.MarshalJSON()
		must(t, err)
		var found struct{ Items []api.IPAllocation }
		must(t, json.Unmarshal(data, &found))
		return found.Items
	}
	must(t, b.node.Do(func() error {
		d, err := allocation.NewDirectory(allocation.DefaultDirectory)
		if err == nil {
			list, err = d.List(t.Context(), allocation.Filter{})
		}
		return err
	}))
	return list
}

// held are the allocations, as "NAME container interface network", sorted.
func (b *bed) held(t *testing.T) []string {
	t.Helper()
	out := []string{}
	for _, a := range b.allocations(t) {
		if o := a.Spec.Owner; a.Spec.Phase == api.PhaseAllocated {
			out = append(out, strings.Join([]string{a.Name, o.ContainerID, o.IfName, o.Network}, " "))
		}
	}
	slices.Sort(out)
	return out
}

// holding are the lines that held returns for an interface with this result.
func holding(scope string, p *libcni.RuntimeConf, network string, addrs ...netip.Addr) (out []string) {
	for _, a := range addrs {
		out = append(out, strings.Join([]string{allocation.Name(scope, a), p.ContainerID, p.IfName, network}, " "))
	}
	return out
}

// holdsExactly waits until exactly these are allocated.
func (b *bed) holdsExactly(t *testing.T, limit time.Duration, want ...[]string) {
	t.Helper()
	all := slices.Concat(want...)
	slices.Sort(all)
	eventually(t, limit, func() error {
		if got := b.held(t); !slices.Equal(got, all) {
			return fmt.Errorf("held are %q, want %q", got, all)
		}
		return nil
	})
}

// ips are the addresses of a result.
func ips(t *testing.T, result types.Result) (out []netip.Addr) {
	t.Helper()
	r, err := types100.NewResultFromResult(result)
	must(t, err)
	for _, ip := range r.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		out = append(out, a.Unmap())
	}
	return out
}

// ipam calls the IPAM plugin as a main plugin does. more are keys of ipam; others are keys beside it, each followed by
// a comma.
func (b *bed) ipam(verb string, p *libcni.RuntimeConf, network, more, others string) (result types.Result, err error) {
	conf := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "type": "bridge", %s "ipam": {"type": "fairlead", %s}}`,
		network, others, more)
	args := &invoke.Args{Command: verb, ContainerID: p.ContainerID, NetNS: p.NetNS, IfName: p.IfName, PluginArgs: p.Args,
		Path: "/opt/cni/bin"}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = b.node.Do(func() error {
		if verb == "ADD" {
			result, err = invoke.ExecPluginWithResult(ctx, "/opt/cni/bin/fairlead", []byte(conf), args, nil)
			return err
		}
		return invoke.ExecPluginWithoutResult(ctx, "/opt/cni/bin/fairlead", []byte(conf), args, nil)
	})
	return result, err
}

// restart kills the agent if it runs, and starts it.
func (b *bed) restart(t *testing.T) {
	t.Helper()
	must(t, b.lab.AgentKill(labtest.Within(t, 10*time.Second), b.node.Name))
	eventually(t, 10*time.Second, func() error {
		if s, err := b.lab.AgentState(t.Context(), b.node.Name); err != nil || s.PID != 0 {
			return fmt.Errorf("the agent is %s, %w", s, err)
		}
		return nil
	})
	must(t, b.lab.AgentStart(labtest.Within(t, 10*time.Second), b.node.Name))
	b.ready(t)
}
