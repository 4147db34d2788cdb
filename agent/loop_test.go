package agent

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

const (
	meManifest = `{apiVersion: v1, kind: Node, metadata: {name: me}, spec: {podCIDR: 10.0.1.0/24},
  status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}`
	// movedManifest holds no node's address, and half of the underlay.
	movedManifest = `{apiVersion: v1, kind: Node, metadata: {name: me}, spec: {podCIDR: 192.0.2.128/25},
  status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}`
	peerManifest = `{apiVersion: v1, kind: Node, metadata: {name: peer}, spec: {podCIDR: 10.0.2.0/24},
  status: {addresses: [{type: InternalIP, address: 192.0.2.12}]}}`
)

// Bad news of the node's own Node, or of all Nodes, changes nothing on the node.
func TestTakeOwnKeepsTheLastGood(t *testing.T) {
	dir := t.TempDir()
	write := func(name, manifest string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(manifest), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("me.yaml", meManifest)
	write("peer.yaml", peerManifest)
	source, err := inputs.NewDirectory(dir, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	l := &loop{nodeName: "me", source: source, log: logr.Discard()}
	if err := l.takeOwn(source.Snapshot()); err != nil {
		t.Fatal(err)
	}
	l.transport = link.Transport{Name: "eth0", Subnets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}

	refused := func(what string, nodes int) {
		t.Helper()
		podCIDR := (*PodCIDRError)(nil)
		if err := l.takeOwn(source.Refresh()); !errors.As(err, &podCIDR) {
			t.Errorf("%s: the error is %v, want a PodCIDRError", what, err)
		}
		if want := []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}; !slices.Equal(l.own.PodCIDRs, want) {
			t.Errorf("%s: the podCIDRs in force are %v, want %v", what, l.own.PodCIDRs, want)
		}
		if len(l.nodes) != nodes {
			t.Errorf("%s: the nodes in force are %v, want %d", what, l.nodes, nodes)
		}
	}
	write("me.yaml", movedManifest)
	refused("a podCIDR in the underlay", 2)
	if err := os.Remove(filepath.Join(dir, "me.yaml")); err != nil {
		t.Fatal(err)
	}
	refused("the own Node is gone", 1)
	if err := os.Remove(filepath.Join(dir, "peer.yaml")); err != nil {
		t.Fatal(err)
	}
	refused("all Nodes are gone", 1)
}

func TestHolder(t *testing.T) {
	addrs := func(s ...string) (out []netip.Prefix) {
		for _, p := range s {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	r := records{pods: map[string]ovsdb.PodPort{
		"fl1": {Attachment: api.Attachment{Addrs: addrs("10.0.1.2/24", "fd00::2/64"), BootID: "now"}},
		"fl2": {Attachment: api.Attachment{Addrs: addrs("10.0.1.3/24"), BootID: "before"}},
	}}
	for _, c := range []struct {
		what, host string
		addrs      []netip.Prefix
		want       string
	}{
		{"free", "fl3", addrs("10.0.1.4/24", "fd00::4/64"), ""},
		{"IPv4 taken, of a podCIDR that has grown", "fl3", addrs("10.0.1.2/23"), "fl1"},
		{"IPv6 taken", "fl3", addrs("10.0.1.4/24", "fd00::2/64"), "fl1"},
		{"its own", "fl1", addrs("10.0.1.2/24"), ""},
		{"of another boot", "fl3", addrs("10.0.1.3/24"), ""},
	} {
		if got := r.holder(c.addrs, c.host, "now"); got != c.want {
			t.Errorf("%s: held by %q, want %q", c.what, got, c.want)
		}
	}
}

// As long as the API server has not told any Node, the agent waits, and does not
// conclude that the node has none. What was kept from before says no more.
func TestWaitsForTheAPIServer(t *testing.T) {
	for what, kept := range map[string]string{"nothing kept": "", "no podCIDR then": `{"Node":"me","Nodes":{"me":{"Name":"me"}}}`} {
		t.Run(what, func(t *testing.T) { waitsForTheAPIServer(t, kept) })
	}
}

func waitsForTheAPIServer(t *testing.T, kept string) {
	dir := t.TempDir()
	kubeconfig, file := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "last-inputs.json")
	for path, content := range map[string]string{file: kept, kubeconfig: `{apiVersion: v1, kind: Config, current-context: c,
  clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: u, user: {}}],
  contexts: [{name: c, context: {cluster: c, user: u}}]}`} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := Options{NodeName: "me", Log: logr.Discard(), Config: api.AgentConfig{PodCIDRWait: time.Millisecond,
		ClientConnection: api.ClientConnection{Kubeconfig: kubeconfig}}}
	client, err := kube.New(o.Config, "test")
	if err != nil {
		t.Fatal(err)
	}
	source := inputs.NewKubernetes(client, o.NodeName, file, false, o.Log)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // the file is read after 3 s
	defer cancel()
	go source.Run(ctx)
	l := newLoop(o, source)
	last := lastError(filepath.Join(t.TempDir(), "last-error"))
	if err := l.waitPodCIDR(ctx, last); err != nil {
		t.Errorf("got %v, want it to wait until it is told to stop", err)
	}
	if kept != "" {
		if s := source.Snapshot(); !s.Kept || s.Unread {
			t.Errorf("the snapshot is %+v, want what was kept", s)
		}
		return
	}
	for what, got := range map[string]func() string{
		"not ready":  func() string { return l.state.Load().notReady.Error() },
		"last-error": func() string { text, _ := os.ReadFile(string(last)); return string(text) },
	} {
		if want := "https://127.0.0.1:1 can't be read"; !strings.Contains(got(), want) || !strings.Contains(got(), "refused") {
			t.Errorf("%s: %q, want %q and the reason in it", what, got(), want)
		}
	}
}

// A pod that took its address just before the podCIDR changed would be reached
// by nobody.
func TestOvertaken(t *testing.T) {
	own := inputs.Node{Name: "me", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}}
	pod := func(addr string) *api.Attachment {
		return &api.Attachment{Addrs: []netip.Prefix{netip.MustParsePrefix(addr)}}
	}
	requests := func() []request {
		out := []request{{add: pod("10.0.1.2/24")}, {add: pod("10.0.9.2/24")}, {add: pod("10.0.9.3/24"), runs: true}, {}}
		for i := range out {
			out[i].done = make(chan error, 1)
		}
		return out
	}
	for _, test := range []struct {
		what     string
		conflict error
		refused  []int
	}{
		{"podCIDR changed", nil, []int{1}},
		{"podCIDR taken by another node", errors.New("taken"), []int{0, 1}},
	} {
		all := requests()
		rest := overtaken(slices.Clone(all), own, test.conflict)
		if len(rest) != len(all)-len(test.refused) {
			t.Errorf("%s: %d of %d requests go on", test.what, len(rest), len(all))
		}
		for i, r := range all {
			if got, want := len(r.done) == 1, slices.Contains(test.refused, i); got != want {
				t.Errorf("%s: request %d refused: %v, want %v", test.what, i, got, want)
			}
		}
	}
}

// While Open vSwitch is away nothing is computed, and a CHECK still knows what MTU
// pods have.
func TestARoundWithoutAResultForgetsNothing(t *testing.T) {
	l := &loop{log: logr.Discard(), metrics: newMetrics(), firstOK: make(chan struct{}),
		advice: newAdviser(nil, "me", logr.Discard()), uplink: &nodeUplink{}}
	l.state.Store(&state{})
	l.uplink.status.Store(&uplinkStatus{})
	stray := Desired{PodMTU: 1450}
	stray.OVSDB.Pods = []api.Attachment{{PodName: "p", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.9.2/24")}}}
	l.publish(&inputs.Snapshot{}, stray, nil, outcome{})
	was := l.state.Load().degraded
	l.publish(&inputs.Snapshot{}, Desired{}, nil, outcome{pods: errors.New("ovsdb-server is down"), away: true})
	s := l.state.Load()
	if s.podMTU != 1450 || was == nil || s.degraded != was || s.notReady == nil || s.away == nil {
		t.Errorf("MTU %d, degraded %v, not ready %v, away %v; want 1450, %v, and the reason twice",
			s.podMTU, s.degraded, s.notReady, s.away, was)
	}
}
