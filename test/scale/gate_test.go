package scale

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/tables"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// The tests of this file count quantities that do not depend on the speed of the machine.

// desire is the desired state of a node with these peers and 100 pods.
func desire(t testing.TB, nodes map[string]inputs.Node) desired.State {
	t.Helper()
	in := desired.Inputs{Nodes: nodes, Own: inputs.Node{Name: node, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24")}},
		Config: api.AgentConfig{OVSBridge: "br-int", OVSDatapathType: "dummy", HostGateway: "fairlead-gw0",
			TrafficEncapMode: api.ModeEncap, TunnelType: api.TunnelGeneve},
		Transport: link.Transport{Name: "eth0", MTU: 1500, IPv4: netip.MustParseAddr("192.168.77.11"),
			Subnets: []netip.Prefix{netip.MustParsePrefix("192.168.77.0/24")}}}
	for i := range 100 {
		id := fmt.Sprintf("container-%d", i)
		in.Attachments = append(in.Attachments, api.Attachment{ContainerID: id, IfName: "eth0", PodNamespace: "default",
			PodName: fmt.Sprint("pod", i), HostIf: link.HostName(id, "eth0"), MAC: api.MAC{2, 0, 0, 0, 1, byte(i)},
			Addrs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, 1, byte(i + 2)}), 24)}})
	}
	d := desired.Compute(in)
	if len(d.Problems) > 0 || len(d.Peers) != len(nodes) {
		t.Fatalf("%d peers of %d Nodes: %v", len(d.Peers), len(nodes), d.Problems)
	}
	return d
}

// peers are the Nodes 0 to n-1, as the agent stores them.
func peers(t testing.TB, n int) map[string]inputs.Node {
	t.Helper()
	list := make([]corev1.Node, n)
	for i := range list {
		list[i] = *Node(i)
	}
	nodes, problems := inputs.Nodes(list)
	if len(problems) > 0 || len(nodes) != n {
		t.Fatalf("%d Nodes of %d: %v", len(nodes), n, problems)
	}
	return nodes
}

// view is d on a switch with port numbers.
func view(d desired.State) tables.View {
	obs := ovsdb.Observed{Gateway: ovsdb.Port{OFPort: 1}, Tunnel: ovsdb.Port{OFPort: 2}}
	for i, a := range d.OVSDB.Pods {
		obs.Pods = append(obs.Pods, ovsdb.PodPort{Attachment: a, OFPort: uint32(10 + i)})
	}
	return d.View(obs)
}

// tapped returns a socket that forwards to the one at path, and the traffic.
func tapped(t *testing.T, o *ovstest.OVS, path string) (string, *Door) {
	t.Helper()
	tap := filepath.Join(o.Dir, "tap-"+filepath.Base(path))
	l, err := net.Listen("unix", tap)
	if err != nil {
		t.Fatal(err)
	}
	d := OpenDoor(l, path)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return tap, d
}

// Types of OpenFlow messages: OpenFlow 1.5.1, section 7.1.1.
const (
	echoRequest, echoReply        = 2, 3
	setConfig                     = 9
	multipartRequest, barrier     = 18, 20
	bundleControl, bundleAddition = 33, 34
)

// openFlow counts messages by type, except echoes.
func openFlow(t *testing.T, sent []byte) map[uint8]int {
	t.Helper()
	count := map[uint8]int{}
	for len(sent) >= 8 {
		size := int(binary.BigEndian.Uint16(sent[2:]))
		if kind := sent[1]; kind != echoRequest && kind != echoReply {
			count[kind]++
		}
		sent = sent[min(size, len(sent)):]
	}
	if len(sent) > 0 {
		t.Fatalf("%d bytes that are no message", len(sent))
	}
	return count
}

// transactions counts the transactions sent to ovsdb-server (RFC 7047, section 4.1.3).
func transactions(t *testing.T, sent []byte) (n int) {
	t.Helper()
	for all := json.NewDecoder(bytes.NewReader(sent)); ; {
		var m struct{ Method string }
		err := all.Decode(&m)
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		if m.Method == "transact" {
			n++
		}
	}
}

// With 5,000 peers, adding one writes only its own flows and nothing to OVSDB, removing it likewise, and a read of all
// flows changes none.
func TestOnePeerMore(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	dbSocket, dbDoor := tapped(t, o, o.DBSocket)
	db, err := ovsdb.Connect(t.Context(), "unix:"+dbSocket, logr.Discard())
	must(t, err)
	defer db.Close()
	all := peers(t, largePeers+1)
	few := maps.Clone(all)
	delete(few, NodeName(largePeers))
	without, with := desire(t, few), desire(t, all)
	// The dummy datapath creates no veth.
	without.OVSDB.Pods, with.OVSDB.Pods = nil, nil
	ensureNow(t, db, without.OVSDB)
	must(t, db.WaitOFPorts(t.Context(), without.OVSDB.Gateway.Name))
	if n := transactions(t, dbDoor.Sent()); n == 0 {
		t.Fatal("nothing was written to OVSDB to begin with: nothing is counted here")
	}
	mgmt, door := tapped(t, o, o.Mgmt("br-int"))
	sw, err := openflow.Dial(t.Context(), mgmt, logr.Discard())
	must(t, err)
	defer sw.Close()
	sync := func(d desired.State) openflow.Changes {
		t.Helper()
		ensureNow(t, db, d.OVSDB)
		pruneNow(t, db, d.OVSDB)
		c, err := sw.Sync(t.Context(), tables.Pipeline(view(d)))
		must(t, err)
		return c
	}
	if c := sync(without); c.Added < 3*largePeers {
		t.Fatalf("%+v for %d peers", c, largePeers)
	}
	for _, step := range []struct {
		what     string
		d        desired.State
		resync   bool
		messages map[uint8]int
	}{
		{"nothing new", without, false, map[uint8]int{}},
		{"one peer more", with, false, map[uint8]int{bundleControl: 2, bundleAddition: 3, barrier: 1}},
		{"all flows and groups listed", with, true, map[uint8]int{setConfig: 1, multipartRequest: 2, barrier: 3}},
		{"one peer less", without, false, map[uint8]int{bundleControl: 2, bundleAddition: 3, barrier: 1}},
	} {
		door.Sent()
		dbDoor.Sent()
		if step.resync {
			sw.Resync()
		}
		sync(step.d)
		if got := openFlow(t, door.Sent()); !maps.Equal(got, step.messages) {
			t.Errorf("%s: messages by type %v, want %v", step.what, got, step.messages)
		}
		if n := transactions(t, dbDoor.Sent()); n != 0 {
			t.Errorf("%s: %d transactions on OVSDB, want 0", step.what, n)
		}
	}
}

// The cost of a round and the agent's memory grow linearly with the number of peers.
func TestCostPerPeer(t *testing.T) {
	const allocations, kept = 20, 2000 // per peer, at most: measured 15, and 1350 bytes
	perPeer := func(n int) float64 {
		nodes := peers(t, n)
		return testing.AllocsPerRun(1, func() { tables.Pipeline(view(desire(t, nodes))) }) / float64(n)
	}
	small, large := perPeer(usualPeers), perPeer(largePeers)
	t.Logf("allocations of a round per peer: %.1f of %d peers, %.1f of %d", small, usualPeers, large, largePeers)
	if large > allocations || large > 1.2*small {
		t.Errorf("want at most %d, and no more of many peers than of few", allocations)
	}
	before := heap()
	nodes := peers(t, largePeers)
	d := desire(t, nodes)
	flows := tables.Pipeline(view(d))
	bytes := float64(heap()-before) / largePeers
	t.Logf("bytes kept per peer: %.0f", bytes)
	if bytes > kept {
		t.Errorf("want at most %d", kept)
	}
	runtime.KeepAlive(nodes)
	runtime.KeepAlive(d)
	runtime.KeepAlive(flows)
}

// heap is the memory in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ensureNow and pruneNow are Ensure and Prune for tests that ignore the reported changes.
func ensureNow(t testing.TB, db *ovsdb.DB, d ovsdb.Desired) {
	t.Helper()
	_, err := db.Ensure(t.Context(), d)
	must(t, err)
}

func pruneNow(t testing.TB, db *ovsdb.DB, d ovsdb.Desired, gone ...string) {
	t.Helper()
	_, err := db.Prune(t.Context(), d, gone...)
	must(t, err)
}
