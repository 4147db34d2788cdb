package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// The networks that are compared: each is its main plugin alone, called as a
// whole process through libcni.
const (
	fairlead = `{"cniVersion": "1.0.0", "name": "fairlead", "plugins": [{"type": "fairlead"}]}`
	peer     = `{"cniVersion": "1.0.0", "name": "peer", "plugins": [{"type": "bridge", "bridge": "peer0", "isGateway": true,
		"ipam": {"type": "host-local", "subnet": "10.99.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]}}]}`
)

// BenchmarkRootCNI measures ADD and DEL of one pod at a time on one node, with
// the reference plugins bridge and host-local taking turns. It reports the
// medians in milliseconds and their ratio.
func BenchmarkRootCNI(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("SKIPPED, NOTHING WAS MEASURED: needs root")
	}
	dir := filepath.Join("/run", fmt.Sprintf("fairlead-bench-%d", os.Getpid()))
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		b.Fatal(err)
	}
	l, err := lab.Up(b.Context(), lab.Options{Dir: dir, BinDir: bin, Nodes: 1, Datapath: "netdev", IPFamily: underlay.IPv4,
		ReadyTimeout: time.Minute, Progress: func(string) {}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := lab.Down(context.Background(), dir, func(string) {}); err != nil {
			b.Error(err)
		}
	})
	node, err := l.Host("node1")
	if err != nil {
		b.Fatal(err)
	}
	times := map[string][]time.Duration{}
	one(b, node, -1, map[string][]time.Duration{}) // warm: bridge, caches
	for i := 0; b.Loop(); i++ {
		one(b, node, i, times)
	}
	for _, verb := range []string{"ADD", "DEL"} {
		ours, theirs := median(times["fairlead "+verb]), median(times["peer "+verb])
		b.ReportMetric(float64(ours.Microseconds())/1000, "ms/"+verb)
		b.ReportMetric(float64(theirs.Microseconds())/1000, "ms/peer-"+verb)
		b.ReportMetric(float64(ours)/float64(theirs), "ratio-"+verb)
	}
}

// one adds and deletes a pod on each network, the first in turn.
func one(b *testing.B, node host.Host, i int, times map[string][]time.Duration) {
	b.Helper()
	networks := []string{fairlead, peer}
	if i%2 == 0 {
		slices.Reverse(networks)
	}
	for n, network := range networks {
		netns := fmt.Sprintf("/run/netns/bench-%d-%d", i, n)
		if err := node.MakeNetns(netns); err != nil {
			b.Fatal(err)
		}
		list, err := libcni.ConfListFromBytes([]byte(network))
		if err != nil {
			b.Fatal(err)
		}
		conf := &libcni.RuntimeConf{ContainerID: fmt.Sprintf("bench-%d-%d", i, n), NetNS: netns, IfName: "eth0"}
		err = node.Do(func() error {
			cni := libcni.NewCNIConfig([]string{"/opt/cni/bin"}, nil)
			start := time.Now()
			if _, err := cni.AddNetworkList(b.Context(), list, conf); err != nil {
				return err
			}
			added := time.Now()
			if err := cni.DelNetworkList(b.Context(), list, conf); err != nil {
				return err
			}
			times[list.Name+" ADD"] = append(times[list.Name+" ADD"], added.Sub(start))
			times[list.Name+" DEL"] = append(times[list.Name+" DEL"], time.Since(added))
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		if err := node.RemoveNetns(netns); err != nil {
			b.Fatal(err)
		}
	}
}

func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}
