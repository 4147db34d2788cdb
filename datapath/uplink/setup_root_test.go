package uplink

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/fairlead-cni/fairlead/datapath/uplink/gateways"
	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
	"github.com/fairlead-cni/fairlead/test/netstate"
	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

const (
	hostIP, outIP   = "192.0.2.11", "192.0.2.1"
	hostIP6, outIP6 = "fd00::11", "fd00::1"
)

// fixture is a node with a NIC, Open vSwitch, and a gateway on the outside.
type fixture struct {
	t        *testing.T
	datapath ovstest.Datapath
	node     *nstest.NS
	outside  *nstest.NS
	ovs      *ovstest.OVS
	journal  string
	config   string // the NIC's at boot
	sysctls  []string
	netns    string // path of the node's namespace of this boot
	// mode is the plan's; pins is where its programs are pinned.
	mode, pins string
	// before and attached are recorded states of the node.
	before, attached netstate.Node
}

const nic = "eth0"

// simple is the NIC configuration of most tests.
const simple = `addr add 192.0.2.11/24 brd + dev eth0
-6 addr add fd00::11/64 dev eth0 nodad
route add default via 192.0.2.1 dev eth0 metric 50 src 192.0.2.11 proto static
-6 route add default via fd00::1 dev eth0 metric 30 proto static`

// noDAD are parameters that disable duplicate address detection for IPv6, which takes a second or two at each boot.
func noDAD() []string {
	return []string{"net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0"}
}

// setup makes a node whose NIC is configured by config, lines for ip(8), and whose sysctls are set before there is a
// NIC.
func setup(t *testing.T, config string, sysctls ...string) *fixture {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "uplink")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		os.RemoveAll(dir)
		os.RemoveAll(journal.InMemory(dir))
	})
	f := &fixture{t: t, datapath: ovstest.UnderTest(t), config: config, sysctls: sysctls,
		journal: filepath.Join(dir, "uplink.json"), netns: filepath.Join(dir, "netns")}
	f.boot(config)
	f.ovs = ovstest.Start(t, ovstest.Options{Datapath: f.datapath, Netns: f.netns})
	// The bridge of the pods, with the other end of the patch.
	f.ovs.AddBridge("br-int", ovstest.Port{Name: PeerPort, Type: "patch", Columns: []string{"options:peer=" + PatchPort}})
	return f
}

// boot creates the node's and the outside's namespaces with their configuration at boot.
func (f *fixture) boot(config string) {
	f.t.Helper()
	f.node, f.outside = nstest.New(f.t), nstest.New(f.t)
	_ = os.Remove(f.netns)
	if err := os.Symlink(f.node.Path, f.netns); err != nil {
		f.t.Fatal(err)
	}
	if len(f.sysctls) > 0 {
		f.node.Exec(append([]string{"sysctl", "-q", "-w"}, f.sysctls...)...)
	}
	nstest.Veth(f.node, nic, f.outside, "far0")
	f.node.IP("link set eth0 down")
	f.node.IP("link set eth0 address 02:00:00:00:00:11")
	f.node.IP("link set eth0 up")
	patient(f.node, nic)
	patient(f.outside, "far0")
	f.outside.IP("addr add " + outIP + "/24 dev far0")
	f.outside.IP("-6 addr add " + outIP6 + "/64 dev far0 nodad")
	f.outside.IP("-6 addr add fe80::1/64 dev far0 nodad")
	f.batch(config)
	f.settle()
}

// settle waits for what the kernel defers to work queues when interfaces are configured, such as the local route of an
// IPv6 address.
func (f *fixture) settle() {
	f.t.Helper()
	nstest.Wait(f.t, time.Minute, "links up, IPv6 addresses in use, each with its route in table local", func() bool {
		addresses := f.node.IP("-6 -o addr")
		routes := f.node.IP("-6 route show table local type local")
		return !strings.Contains(f.node.IP("-o link show up"), "DOWN") && !strings.Contains(addresses, "tentative") &&
			strings.Count(addresses, "\n") == strings.Count(routes, "\n")
	})
}

// patient makes a device solicit a neighbour for 15 s instead of three, as long as reached waits, because ovs-vswitchd
// may stall for as long. The userspace datapath forwards frames unchanged, so checksum offload is off.
func patient(ns *nstest.NS, dev string) {
	ns.Exec("sh", "-ec", "ethtool -K $0 tx off; cd /proc/sys/net; "+
		"echo 15 >ipv4/neigh/$0/mcast_solicit; echo 15 >ipv6/neigh/$0/mcast_solicit", dev)
}

// batch runs lines for ip(8) in one process per family, because starting a process is slow in User-Mode Linux. The
// lines for IPv4, and for interfaces, come first.
func (f *fixture) batch(lines string) {
	f.t.Helper()
	var v4, v6 strings.Builder
	for line := range strings.Lines(lines) {
		if rest, ok := strings.CutPrefix(line, "-6 "); ok {
			v6.WriteString(rest)
		} else {
			v4.WriteString(line)
		}
	}
	f.node.Exec("sh", "-ec", `printf %s "$0" | ip -batch -; printf %s "$1" | ip -6 -batch -`, v4.String(), v6.String())
}

func (f *fixture) plan() Plan {
	return Plan{Mode: f.mode, Pins: f.pins, NIC: nic, Datapath: string(f.datapath), OVSRunDir: f.ovs.Dir,
		Check: func(ctx context.Context) error { return gateways.Check(ctx, BridgeName) }, RollbackAfter: 30 * time.Second}
}

func (f *fixture) open() *Uplink {
	f.t.Helper()
	u, err := Open(f.journal, testLog(f.t))
	if err != nil {
		f.t.Fatal(err)
	}
	u.runDir, u.pins = f.ovs.Dir, f.plan().pins()
	return u
}

func testLog(t *testing.T) logr.Logger {
	return funcr.New(func(prefix, args string) { t.Log(prefix, args) }, funcr.Options{})
}

func (f *fixture) attach() error {
	f.t.Helper()
	u, p := f.open(), f.plan()
	p.Check = u.CheckGateways
	return f.node.Do(func() error { return u.Attach(context.Background(), p) })
}

func (f *fixture) restore() error {
	f.t.Helper()
	u := f.open()
	return f.node.Do(func() error { return u.Restore(context.Background(), "a test says so") })
}

func (f *fixture) state() (s netstate.Node) {
	f.t.Helper()
	f.node.Must(func() (err error) { s, err = netstate.Read(); return err })
	// The rest of Open vSwitch does not matter to these tests, and is recreated with every start.
	others := regexp.MustCompile(`\b(br-int|ovs-netdev|ovs-system)\b`)
	s.Lines = slices.DeleteFunc(s.Lines, func(line string) bool {
		return others.MatchString(strings.ReplaceAll(line, "master ovs-system", "")) // as in the NIC's line
	})
	for i, line := range s.Lines { // a tap is "unknown" until the next ovs-vswitchd opens it
		if strings.Contains(line, "kind tuntap") {
			s.Lines[i] = strings.Replace(line, "state unknown", "state up", 1)
		}
	}
	return s
}

// reached checks that the node and the outside can reach each other.
func (f *fixture) reached() {
	f.t.Helper()
	for _, p := range []struct {
		from *nstest.NS
		to   string
	}{{f.outside, hostIP}, {f.outside, hostIP6}, {f.node, outIP}, {f.node, outIP6}} {
		// One echo request, which must not be lost. The reply may be late: a guest stalls for seconds on a busy
		// machine.
		if out, err := p.from.Run("ping", "-c1", "-W15", p.to); err != nil {
			f.t.Errorf("no answer of %s: %v\n%s", p.to, err, f.describe())
			f.t.Log(out)
		}
	}
}

func (f *fixture) describe() string {
	out := ""
	for _, c := range []string{"addr", "route show table all", "-6 route show table all", "neigh"} {
		text, _ := f.node.Run(append([]string{"ip"}, strings.Fields(c)...)...)
		out += fmt.Sprintf("ip %s:\n%s", c, text)
	}
	text, _ := f.ovs.Run("ovs-vsctl", "show")
	return out + text
}

func same(t *testing.T, what string, want, have netstate.Node) {
	t.Helper()
	if d := want.Differences(have); len(d) > 0 {
		t.Errorf("%s:\n%s", what, strings.Join(d, "\n"))
	}
}
