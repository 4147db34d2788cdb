package uplink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
	"github.com/fairlead-cni/fairlead/datapath/uplink/preflight"
	"github.com/fairlead-cni/fairlead/test/netstate"
)

// Attach and restore.
func TestRootAttachAndRestore(t *testing.T) {
	f := setup(t, simple)
	before := f.state()
	f.reached()
	if err := f.attach(); err != nil {
		t.Fatal(err, f.describe())
	}
	f.reached()
	f.neighboursStay()
	attached := f.state()
	if err := f.attach(); err != nil {
		t.Fatal(err)
	}
	same(t, "attached twice", attached, f.state())
	var r preflight.Report
	u := f.open()
	f.node.Must(func() (err error) { r, err = u.Preflight(context.Background(), f.plan()); return err })
	if len(r.Refused) > 0 || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "already attached") {
		t.Errorf("preflight of what is attached: %+v", r)
	}
	if err := f.restore(); err != nil {
		t.Fatal(err, f.describe())
	}
	f.reached()
	same(t, "restored", before, f.state())
}

// neighboursStay checks that the host need not resolve its neighbours again when ovs-vswitchd is back, which would take
// a second.
func (f *fixture) neighboursStay() {
	f.t.Helper()
	f.ovs.Vswitchd.Kill()
	for _, ip := range []string{outIP, outIP6} {
		if out := f.node.IP("neigh show " + ip + " dev br-uplink"); !strings.Contains(out, "lladdr") {
			f.t.Errorf("ovs-vswitchd has ended: br-uplink's neighbour %s: %q", ip, out)
		}
	}
	f.ovs.Vswitchd.Start()
	f.reached()
}

// The check is retried until it succeeds, and a process that is stopped before then leaves the attach to the next one.
func TestRootCheckIsRetried(t *testing.T) {
	f := setup(t, simple)
	u, p := f.open(), f.plan()
	ctx, cancel := context.WithCancel(context.Background())
	p.Check = func(context.Context) error { cancel(); return errors.New("not yet") }
	if err := f.node.Do(func() error { return u.Attach(ctx, p) }); err == nil || errors.Is(err, ErrRolledBack) {
		t.Errorf("after the end of its context: %v", err)
	}
	if phase := f.open().Journal().Phase; phase != Attaching {
		t.Errorf("after the end of its context: phase %s", phase)
	}
	tries := 0
	p.Check = func(context.Context) error {
		if tries++; tries < 3 {
			return errors.New("not yet")
		}
		return nil
	}
	f.node.Must(func() error { return u.Attach(context.Background(), p) })
	if !u.Attached() || tries != 3 {
		t.Errorf("after %d tries: %+v", tries, u.Journal().Phase)
	}
}

// Each attach after which the network does not answer is counted, and postpones the next one.
func TestRootTriesAreCounted(t *testing.T) {
	f := setup(t, simple)
	u, p := f.open(), f.plan()
	p.RollbackAfter, p.RetryAfter = 10*time.Millisecond, time.Hour
	p.Check = func(context.Context) error { return errors.New("no answer") }
	for try := 1; try <= 2; try++ {
		if err := f.node.Do(func() error { return u.Attach(context.Background(), p) }); !errors.Is(err, ErrRolledBack) {
			t.Fatalf("try %d: %v", try, err)
		}
		if j := f.open().Journal(); j.Tries != try || !j.Unreached || j.RetryDue(p.RetryAfter) {
			t.Errorf("after try %d: %d tries, unreached: %t, the next at %s", try, j.Tries, j.Unreached, j.RetryAt)
		}
	}
}

// The journal is written ahead: it names each step before the step begins, and its direction.
func TestRootJournalIsAhead(t *testing.T) {
	f := setup(t, simple)
	u, way, done := f.open(), Attaching, 0
	u.after = func(what string) {
		r := journal.Read(f.journal, u.bootID)
		j := r.Newest
		if j == nil || !r.Both {
			t.Errorf("%s: the journal is %+v", what, r)
			return
		}
		step, isDone := strings.CutPrefix(what, "done ")
		if isDone {
			done++
		}
		if isDone && (j.Step != step || j.Phase != way) {
			t.Errorf("%s, and the journal says %s, %s", what, j.Phase, j.Step)
		}
		if _, err := os.Stat("/proc/thread-self/net/dev_snmp6/" + BridgeName); what == "journal begin" && err == nil {
			t.Error("br-uplink exists before the journal")
		}
	}
	f.node.Must(func() error { return u.Attach(context.Background(), f.plan()) })
	way = Restoring
	f.node.Must(func() error { return u.Restore(context.Background(), "a test says so") })
	if least := 2 * (len(facts(api.UplinkBridge)) - 4); done < least { // verify, nic, mute and port may be no-ops
		t.Errorf("%d steps were seen, want %d", done, least)
	}
}

// A journal of another boot is void: the NIC keeps its configuration of this boot, and that is what moves next.
func TestRootOtherBoot(t *testing.T) {
	f := setup(t, simple)
	f.nextAgent()
	f.config = strings.ReplaceAll(simple, " metric 50", " metric 60") + "\naddr add 192.0.2.77/24 dev eth0"
	f.reboot()
	if err := f.restore(); err != nil {
		t.Error(err)
	}
	same(t, "restored with the journal of another boot", f.before, f.state())
	f.nextAgent()
	if out := f.node.IP("addr show dev br-uplink"); !strings.Contains(out, "192.0.2.77") {
		t.Errorf("attached in this boot: %s", out)
	}
	if err := f.restore(); err != nil {
		t.Error(err)
	}
	f.reached()
	f.sameSoon(f.before, "restored")
}

// If ovsdb-server hangs or is dead while ovs-vswitchd runs, the node stays reachable, and what could not be done is
// reported and done later.
func TestRootNoServer(t *testing.T) {
	f := setup(t, simple)
	before := f.state()
	f.nextAgent()
	f.ovs.Server.Signal(syscall.SIGSTOP)
	err := f.restore()
	f.reached()
	f.ovs.Server.Signal(syscall.SIGCONT)
	if err == nil || !strings.Contains(err.Error(), "ovsdb-server does not answer") {
		t.Errorf("restored while ovsdb-server hangs: %v", err)
	}
	if phase := f.open().Journal().Phase; phase != Restoring {
		t.Errorf("the phase is %s", phase)
	}
	if err := f.restore(); err != nil {
		t.Error(err)
	}
	f.reached()
	f.sameSoon(before, "restored")

	f.nextAgent()
	f.ovs.Server.Kill()
	if err := f.restore(); err != nil {
		t.Errorf("restored while ovsdb-server is dead: %v", err)
	}
	f.reached()
	f.ovs.Server.Start()
	f.reached()
	f.sameSoon(before, "restored")
}

// One process at a time: another one waits, and sees what the previous one has done.
func TestRootOneAtATime(t *testing.T) {
	f := setup(t, simple)
	u, other := f.open(), f.open()
	unlock, err := u.lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	before := f.state()
	if err := f.node.Do(func() error { return other.Attach(ctx, f.plan()) }); err == nil ||
		!strings.Contains(err.Error(), "another process") {
		t.Errorf("while another is at it: %v", err)
	}
	same(t, "while another is at it", before, f.state())
	unlock()
	f.nextAgent()
	f.node.Must(func() error { return other.Restore(context.Background(), "a test says so") })
	same(t, "restored by a process that was there before", before, f.state())
}

// External changes to an attached uplink are reverted; changes of the NIC's MTU are followed.
func TestRootExternalChanges(t *testing.T) {
	f := setup(t, rich)
	f.nextAgent()
	f.attached = f.state()
	for _, change := range []string{"ip addr flush dev br-uplink", "ip link set br-uplink down", "ip route del default",
		"ip rule del priority 101", "ip addr add 192.0.2.11/24 dev eth0", "ip link set br-uplink mtu 1400",
		"sysctl -q -w net.ipv6.conf.eth0.disable_ipv6=0"} {
		f.node.Exec(strings.Fields(change)...)
		if len(f.attached.Differences(f.state())) == 0 {
			t.Errorf("%s changes nothing", change)
		}
		u := f.open()
		f.node.Must(func() error { _, err := u.Repair(context.Background()); return err })
		f.reached()
		if strings.Contains(change, "flush") || strings.Contains(change, "down") {
			continue // this also deletes addresses with a lifetime, which only a router recreates
		}
		f.sameButExpiring(f.attached, change)
	}
	f.node.IP("link set eth0 mtu 1450")
	u := f.open()
	f.node.Must(func() error { _, err := u.Repair(context.Background()); return err })
	if out := f.node.IP("link show br-uplink"); !strings.Contains(out, "mtu 1450") {
		t.Errorf("the NIC has MTU 1450: %s", out)
	}
}

// What was added to br-uplink externally is on the NIC after the restore, besides what the NIC had.
func TestRootAdditionsAreRestored(t *testing.T) {
	f := setup(t, simple)
	f.nextAgent()
	f.node.IP("addr add 192.0.2.88/24 dev " + BridgeName)
	f.node.IP("route add 10.99.0.0/16 via 192.0.2.1 dev " + BridgeName)
	f.node.IP("-6 route add fd09::/64 via fd00::1 dev " + BridgeName)
	if err := f.restore(); err != nil {
		t.Fatal(err, f.describe())
	}
	f.reached()
	for show, want := range map[string]string{"addr show dev " + nic: "192.0.2.88/24",
		"route show 10.99.0.0/16": "via 192.0.2.1 dev " + nic, "-6 route show fd09::/64": "via fd00::1 dev " + nic} {
		if out := f.node.IP(show); !strings.Contains(out, want) {
			t.Errorf("ip %s: %q, want %q", show, out, want)
		}
	}
}

// A route to the pods of another node moves with the NIC's addresses, and is not restored: another package removes it
// when that node is deleted.
func TestRootFairleadsRoutesAreNotKept(t *testing.T) {
	f := setup(t, rich)
	route := func() string { return strings.TrimSpace(f.node.IP("route show 10.88.1.0/24")) }
	f.node.IP("route add 10.88.1.0/24 via 192.0.2.1 dev eth0 proto 102")
	f.nextAgent()
	if now := route(); !strings.Contains(now, "via 192.0.2.1 dev "+BridgeName+" proto 102") {
		t.Fatalf("the route after the attachment: %q", now)
	}
	f.node.IP("route del 10.88.1.0/24")
	u := f.open()
	f.node.Must(func() error {
		steps, err := u.Repair(context.Background())
		if len(steps) > 0 {
			t.Errorf("steps without its route: %v", steps)
		}
		return err
	})
	if now := route(); now != "" {
		t.Errorf("it was restored: %s", now)
	}
	if err := f.restore(); err != nil {
		t.Fatal(err, f.describe())
	}
	if now := route(); now != "" {
		t.Errorf("after the restoration: %s", now)
	}
}

// sameButExpiring compares everything without a lifetime.
func (f *fixture) sameButExpiring(want netstate.Node, what string) {
	f.t.Helper()
	permanent := func(n netstate.Node) netstate.Node {
		n.Lines = slices.DeleteFunc(slices.Clone(n.Lines), func(line string) bool {
			return strings.Contains(line, "expires=") || strings.Contains(line, "fd00:1::")
		})
		return n
	}
	same(f.t, what, permanent(want), permanent(f.state()))
}

// Everything that a NIC can have moves to br-uplink and back.
func TestRootEverythingMoves(t *testing.T) {
	f := setup(t, rich)
	f.node.Exec("sysctl", "-q", "-w", "net.ipv4.conf.eth0.rp_filter=2", "net.ipv4.neigh.eth0.gc_stale_time=99",
		"net.ipv6.conf.eth0.accept_ra_min_hop_limit=2", "net.ipv6.neigh.eth0.gc_stale_time=98")
	before := f.state()
	if err := f.attach(); err != nil {
		t.Fatal(err, f.describe())
	}
	f.reached()
	for _, table := range []string{"ip -4 route show table all dev eth0", "ip -6 route show table all dev eth0", "ip -o addr show dev eth0"} {
		if out := f.node.Exec(strings.Fields(table)...); strings.TrimSpace(out) != "" {
			t.Errorf("%s:\n%s", table, out)
		}
	}
	f.movedAll(before)
	if err := f.restore(); err != nil {
		t.Fatal(err, f.describe())
	}
	f.reached()
	same(t, "restored", before, f.state())
}

// movedAll checks that br-uplink has what the NIC had before, and nothing else. Its addresses create no routes and no
// duplicate address detection, user-defined labels stay, and it keeps its neighbours without a carrier.
func (f *fixture) movedAll(before netstate.Node) {
	f.t.Helper()
	names := regexp.MustCompile(`\b(eth0|br-uplink)\b`)
	flags := regexp.MustCompile(`flags (\d+)`)
	on := func(node netstate.Node, device string) (lines []string) {
		for _, line := range node.Lines {
			if names.FindString(line) != device || strings.HasPrefix(line, "link ") || strings.Contains(line, "evict_nocarrier") {
				continue
			}
			if strings.HasPrefix(line, "address ") {
				line = flags.ReplaceAllStringFunc(line, func(text string) string {
					bits, _ := strconv.Atoi(text[len("flags "):]) // digits
					return fmt.Sprintf("flags %#x", bits&^(unix.IFA_F_NOPREFIXROUTE|unix.IFA_F_NODAD))
				})
			}
			lines = append(lines, names.ReplaceAllString(line, "X"))
		}
		return lines
	}
	now := f.state()
	same(f.t, "moved to br-uplink", netstate.Node{Lines: on(before, nic), At: before.At},
		netstate.Node{Lines: on(now, BridgeName), At: now.At})
}

// rich has one of everything.
const rich = simple + `
link property add dev eth0 altname enp1s0-an-alternative-name
link add eth1 address 02:00:00:00:01:21 type veth peer name far1 address 02:00:00:00:01:01
link set eth1 up
link set far1 up
addr add 192.0.2.21/24 dev eth1 metric 500
-6 addr add fd00::21/64 dev eth1 nodad metric 500
addr add 192.0.2.12/24 dev eth0 label eth0:vip
addr add 198.51.100.1 peer 198.51.100.2/32 dev eth0 scope link
addr add 203.0.113.5/24 dev eth0 metric 77 noprefixroute
-6 addr add fd00::12/64 dev eth0 nodad home noprefixroute
-6 addr add fd00:1::ff:fe00:11/64 dev eth0 nodad mngtmpaddr valid_lft 5000 preferred_lft 4000
route add 10.1.0.0/16 via 192.0.2.2 dev eth0 mtu lock 1400 advmss 1300 initcwnd 20 realm 3
route add 10.2.0.0/16 nexthop via 192.0.2.2 dev eth0 weight 3 nexthop via 192.0.2.22 dev eth1 weight 1
route add 10.3.0.0/16 via 169.254.9.9 dev eth0 onlink table 200
route add 10.4.0.0/16 dev eth0 tos 0x10 scope link table 1000
route append 10.6.0.0/16 dev eth1
route append 10.6.0.0/16 dev eth0
-6 route add fd01::/64 via fd00::2 dev eth0 mtu 1400 expires 5000
-6 route add fd02::/64 nexthop via fd00::2 dev eth0 weight 2 nexthop via fd00::22 dev eth1
-6 route add fd03::/64 dev eth0 table 200
rule add from 192.0.2.12 lookup 200 priority 100
rule add iif eth0 fwmark 0x1/0xff lookup 200 priority 101
rule add oif eth0 to 10.3.0.0/16 lookup 1000 priority 102
-6 rule add iif eth0 lookup 200 priority 101
neigh add 192.0.2.99 lladdr 02:00:00:00:00:99 dev eth0 nud permanent
neigh add proxy 192.0.2.98 dev eth0
-6 neigh add fd00::99 lladdr 02:00:00:00:00:99 dev eth0 nud permanent`

// steady is rich without what expires, which is lost with its interface and recreated by its origin.
func steady() string {
	return regexp.MustCompile(`\n.* (expires|valid_lft) .*`).ReplaceAllString(rich, "")
}
