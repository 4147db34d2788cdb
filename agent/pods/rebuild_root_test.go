package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/agent/addresses"
	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/hostlocal"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// If OVSDB has lost all records, a bridged pod about which nothing is known, or whose address is no longer in a pool,
// does not prevent the records of routed pods from being restored, and no pod loses its veth or its lease.
func TestRootRoutedPodsAreRebuiltDespiteABridgedOne(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet is sent")
	for what, spoil := range map[string]func(t *testing.T, allocations string){
		"allocations that cannot be listed": func(t *testing.T, allocations string) {
			must(t, os.Remove(allocations))
		},
		"an address that is in no pool": func(t *testing.T, allocations string) {
			a := api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: allocation.Name("", netip.MustParseAddr("10.9.0.7"))},
				Spec: api.IPAllocationSpec{Address: "10.9.0.7", Pool: "deleted", Phase: api.PhaseAllocated,
					Owner: api.AllocationOwner{ContainerID: "bridged", IfName: "eth0", Node: "n", BootID: "boot"}}}
			text, err := json.Marshal(a)
			must(t, err)
			must(t, os.WriteFile(filepath.Join(allocations, a.Name), text, 0o600))
		},
	} {
		t.Run(what, func(t *testing.T) {
			b := newRebuildBed(t)
			spoil(t, b.pods.Config.IPAM.AllocationsDir)
			hosts := []string{b.veth(t, "routed1"), b.veth(t, "routed2"), b.veth(t, "bridged")}
			for _, id := range []string{"routed1", "routed2", "gone"} {
				_, err := b.pods.leases.Allocate(id, "eth0", b.pods.Board.Load().PodCIDRs)
				must(t, err)
			}
			if err := b.reconcile(t); err == nil {
				t.Error("no word of the bridged pod")
			}
			b.check(t, hosts)
		})
	}
}

// rebuildBed is a node whose OVSDB is empty and whose API server does not answer.
type rebuildBed struct {
	pods    *Pods
	applied *recorder
	node    *nstest.NS
}

func newRebuildBed(t *testing.T) rebuildBed {
	b := rebuildBed{applied: &recorder{}, node: nstest.New(t)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ovs := ovstest.Start(t, ovstest.Options{})
	db, err := ovsdb.Connect(ctx, "unix:"+ovs.DBSocket, logr.Discard())
	must(t, err)
	t.Cleanup(db.Close)
	leases, err := hostlocal.Open(t.TempDir(), "boot")
	must(t, err)
	t.Cleanup(func() { leases.Close() })
	board := status.NewBoard(nil)
	board.Publish(&status.Status{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}})
	cfg := api.AgentConfig{EnableBridgingMode: true}
	cfg.IPAM.AllocationsDir = filepath.Join(t.TempDir(), "allocations")
	source := &stale{is: inputs.Snapshot{Trouble: errors.New("the API server does not answer")}}
	registry := attachments.New(db, "br-int", "boot", &attachments.Recorded{})
	metrics := status.NewMetrics("test")
	of, err := addresses.New(addresses.Parts{Config: cfg, NodeName: "n", Source: source, Board: board, Registry: registry,
		Metrics: metrics, Log: logr.Discard()})
	must(t, err)
	t.Cleanup(of.Close)
	b.pods = &Pods{leases: leases, Parts: Parts{Config: cfg, Node: b.applied, Source: source, Board: board,
		Registry: registry, Addresses: of, Metrics: metrics, Log: logr.Discard()}}
	return b
}

// veth creates a container's veth, and returns its host end.
func (b rebuildBed) veth(t *testing.T, containerID string) string {
	t.Helper()
	host := link.HostName(containerID, "eth0")
	b.node.IP(fmt.Sprintf("link add %s group %d type veth peer name p%s", host, link.Group, host[2:]))
	return host
}

// reconcile runs Reconcile like an agent in the node's namespace, with its own /var/lib.
func (b rebuildBed) reconcile(t *testing.T) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var reconciled error
	must(t, b.node.Do(func() error { // on a thread that ends with it
		if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("none", "/var/lib", "tmpfs", 0, "")); err != nil {
			return err
		}
		reconciled = b.pods.Reconcile(ctx)
		return nil
	}))
	return reconciled
}

// check checks that the routed pods' records were requested, and that nothing of a pod with a veth was removed.
func (b rebuildBed) check(t *testing.T, hosts []string) {
	t.Helper()
	restored := map[string][]netip.Prefix{}
	for _, c := range b.applied.changes {
		if c.Add != nil && c.Restores {
			restored[c.Add.ContainerID] = c.Add.Addrs
		} else if c.Del.ContainerID != "gone" {
			t.Errorf("asked to remove %+v", c.Del)
		}
	}
	if len(restored) != 2 || len(restored["routed1"]) != 1 || len(restored["routed2"]) != 1 {
		t.Errorf("restored records of %v, want routed1 and routed2", restored)
	}
	for _, host := range hosts {
		if !strings.Contains(b.node.IP("-o link"), host) {
			t.Errorf("host end %s was removed", host)
		}
	}
	leases, err := b.pods.leases.Leases()
	must(t, err)
	var have []string
	for _, l := range leases {
		have = append(have, l.ContainerID)
	}
	slices.Sort(have)
	if !slices.Equal(have, []string{"routed1", "routed2"}) {
		t.Errorf("leases of %v, want routed1 and routed2", have)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stale is a Source with only a snapshot.
type stale struct {
	inputs.Source
	is inputs.Snapshot
}

func (s *stale) Snapshot() *inputs.Snapshot { return &s.is }
