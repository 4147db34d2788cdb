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
	"golang.org/x/sync/errgroup"

	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// The networks that are compared: each is its main plugin alone, run as a process through libcni.
const (
	fairlead = `{"cniVersion": "1.0.0", "name": "fairlead", "plugins": [{"type": "fairlead"}]}`
	peer     = `{"cniVersion": "1.0.0", "name": "peer", "plugins": [{"type": "bridge", "bridge": "peer0", "isGateway": true,
		"ipam": {"type": "host-local", "subnet": "10.99.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]}}]}`
	peerName = "bridge + host-local"
)

// settleFirst, settleEach (per deleted pod) and settleStaying (per remaining pod) are the pause after a request: the
// agent removes ports after 50 ms without a request, on the userspace datapath each removal blocks ovs-vswitchd's main
// thread for 10 ms, and ovs-vswitchd then examines the ports of all pods. The next request would measure that work.
const settleFirst, settleEach, settleStaying = 100 * time.Millisecond, 30 * time.Millisecond, time.Millisecond

// bed is a lab for measurements, with a node whose plugins are called. No runner starts its Pods.
type bed struct {
	*lab.Lab
	host   host.Host
	made   int // pods
	stay   int // pods that remain, on each network
	agent  int // process of node1's agent; 0: not looked up yet
	fl, pe network
}

// network is one of the compared networks, on a host of its own: ovs-vswitchd reads all links of its host whenever one
// changes, which would delay the peer, too.
type network struct {
	*libcni.NetworkConfigList
	host    host.Host
	plugins []string // directories
}

// newBed creates the lab, which lives until the benchmark ends.
func newBed(b *testing.B, o lab.Options) *bed {
	b.Helper()
	if os.Geteuid() != 0 {
		b.Skip("SKIPPED, NOTHING WAS MEASURED: needs root")
	}
	o.Dir = filepath.Join("/run", fmt.Sprintf("fairlead-bench-%d", os.Getpid()))
	var err error
	if o.BinDir, err = filepath.Abs("../../bin"); err != nil {
		b.Fatal(err)
	}
	x := &bed{}
	if x.Lab, err = lab.Up(b.Context(), o); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if b.Failed() {
			x.showLog(b)
		}
		if err := lab.Down(context.Background(), o.Dir, nil); err != nil {
			b.Error(err)
		}
	})
	if x.host, err = x.Host("node1"); err != nil {
		b.Fatal(err)
	}
	x.fl = x.network(b, "node1", fairlead, "/opt/cni/bin")
	x.pe = x.network(b, underlay.Outside, peer, "/usr/lib/cni", "/usr/libexec/cni") // Debian's path, and other ones
	return x
}

func (x *bed) network(b *testing.B, hostName, config string, plugins ...string) network {
	b.Helper()
	h, err := x.Host(hostName)
	if err != nil {
		b.Fatal(err)
	}
	list, err := libcni.ConfListFromBytes([]byte(config))
	if err == nil {
		err = os.MkdirAll(h.Private("/run/netns"), 0o755)
	}
	if err != nil {
		b.Fatal(err)
	}
	return network{list, h, plugins}
}

// showLog shows the end of the agent's log.
func (x *bed) showLog(b *testing.B) {
	path, err := x.AgentLog("node1")
	if err != nil {
		b.Log(err)
		return
	}
	text, err := os.ReadFile(path)
	b.Logf("the end of the agent's log: %v\n%s", err, text[max(0, len(text)-4000):])
}

// sandboxFor is a new sandbox for the Pod of that name in the namespace default.
func (x *bed) sandboxFor(b *testing.B, n network, pod string) *libcni.RuntimeConf {
	b.Helper()
	x.made++
	conf := &libcni.RuntimeConf{ContainerID: fmt.Sprintf("bench-%d", x.made), IfName: "eth0",
		NetNS: fmt.Sprintf("/run/netns/bench-%d", x.made)}
	conf.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", pod},
		{"K8S_POD_INFRA_CONTAINER_ID", conf.ContainerID}}
	if err := n.host.MakeNetns(conf.NetNS); err != nil {
		b.Fatal(err)
	}
	return conf
}

// remove removes sandboxes after their DEL, and waits until the resulting work is done.
func (x *bed) remove(b *testing.B, n network, sandboxes ...*libcni.RuntimeConf) {
	b.Helper()
	for _, s := range sandboxes {
		if err := n.host.RemoveNetns(s.NetNS); err != nil {
			b.Fatal(err)
		}
	}
	x.settle(len(sandboxes))
}

// settle waits until the work of the last request is done, including that for deleted pods.
func (x *bed) settle(deleted int) {
	time.Sleep(settleFirst + settleEach*time.Duration(deleted) + settleStaying*time.Duration(x.stay))
}

// add calls ADD for all sandboxes concurrently. It returns the time from the first call to the last answer, in ms.
func (x *bed) add(b *testing.B, n network, sandboxes ...*libcni.RuntimeConf) float64 {
	b.Helper()
	return x.call(b, n, sandboxes, func(c *libcni.CNIConfig, s *libcni.RuntimeConf) error {
		_, err := c.AddNetworkList(b.Context(), n.NetworkConfigList, s)
		return err
	})
}

// del is add for DEL.
func (x *bed) del(b *testing.B, n network, sandboxes ...*libcni.RuntimeConf) float64 {
	b.Helper()
	return x.call(b, n, sandboxes, func(c *libcni.CNIConfig, s *libcni.RuntimeConf) error {
		return c.DelNetworkList(b.Context(), n.NetworkConfigList, s)
	})
}

func (x *bed) call(b *testing.B, n network, sandboxes []*libcni.RuntimeConf,
	verb func(*libcni.CNIConfig, *libcni.RuntimeConf) error) float64 {
	b.Helper()
	begun, ended := make([]time.Time, len(sandboxes)), make([]time.Time, len(sandboxes))
	var all errgroup.Group
	for i, s := range sandboxes {
		all.Go(func() error {
			return n.host.Do(func() error { // entering the host is not part of the plugins' time
				cni := libcni.NewCNIConfig(n.plugins, nil)
				begun[i] = time.Now()
				err := verb(cni, s)
				ended[i] = time.Now()
				return err
			})
		})
	}
	if err := all.Wait(); err != nil {
		b.Fatal(err)
	}
	took := slices.MaxFunc(ended, time.Time.Compare).Sub(slices.MinFunc(begun, time.Time.Compare))
	return float64(took.Microseconds()) / 1000
}
