package uplink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
	"github.com/fairlead-cni/fairlead/internal/bootid"
	"github.com/fairlead-cni/fairlead/test/chaos"
	"github.com/fairlead-cni/fairlead/test/netstate"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// childEnv makes the test binary a single process that attaches or restores, and may kill itself.
const childEnv = "FAIRLEAD_UPLINK_TEST_CHILD"

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		os.Exit(child(text))
	}
	os.Exit(m.Run())
}

// order is what the child is to do.
type order struct {
	Op      string // attach, roll back, restore, yield or rebuild
	Journal string
	Plan    Plan
	// KillAfter is after how many journal writes and steps it is killed; 0: never.
	KillAfter int
}

func child(text string) int {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	u, err := Open(o.Journal, logr.Discard())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	u.runDir, u.pins = o.Plan.OVSRunDir, o.Plan.pins()
	count, begun := 0, o.Op != "roll back"
	u.after = func(what string) {
		if begun = begun || what == "journal roll back"; !begun {
			return // these are points of the attach
		}
		// A kill before a step is the same as one after the previous step: only the journal records which step has
		// begun, and nothing reads that.
		if step, ok := strings.CutPrefix(what, "journal "); ok && step != stepVerify && slices.Contains(allSteps(), step) {
			return
		}
		if count++; count == o.KillAfter {
			fmt.Println("killed after:", what)
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	switch o.Op {
	case "restore":
		err = u.Restore(context.Background(), "a test says so")
	case "rebuild":
		_, err = u.Rebuild(context.Background())
	case "yield":
		_, err = u.Yield(context.Background(), VswitchdEnds)
	case "roll back":
		o.Plan.Check, o.Plan.RollbackAfter = func(context.Context) error { return errors.New("no answer") }, time.Millisecond
		if err = u.Attach(context.Background(), o.Plan); errors.Is(err, ErrRolledBack) {
			err = nil
		}
	default:
		o.Plan.Check = u.CheckGateways
		err = u.Attach(context.Background(), o.Plan)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func allSteps() (names []string) {
	for _, f := range slices.Concat(facts(api.UplinkBridge), facts(api.UplinkSteer)) {
		names = append(names, f.name, Step{f.name, true}.String())
	}
	return names
}

// run runs the child in the node's namespace. It returns the point after which the child was killed, empty if it
// completed.
func (f *fixture) run(op string, killAfter int) string {
	f.t.Helper()
	cmd := f.command(op, killAfter)
	out, err := cmd.CombinedOutput()
	if m := regexp.MustCompile(`killed after: (.*)`).FindSubmatch(out); m != nil && killAfter > 0 {
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
			f.t.Fatalf("%s: it said %q and was not killed: %v", op, out, err)
		}
		return string(m[1])
	}
	if err != nil {
		f.t.Fatalf("%s: %v: %s\n%s", op, err, out, f.describe())
	}
	return ""
}

// command is the child; nsenter execs it.
func (f *fixture) command(op string, killAfter int) *exec.Cmd {
	f.t.Helper()
	text, err := json.Marshal(order{op, f.journal, f.plan(), killAfter})
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.Command("nsenter", "--net="+f.node.Path, "--", os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	return cmd
}

// recovery is what happens after the kill, and the expected phase of the node then.
type recovery struct {
	name string
	do   func(f *fixture)
	end  Phase
}

func recoveries() []recovery {
	return []recovery{
		{"the next agent", (*fixture).nextAgent, Attached},
		{"restore without OVS", (*fixture).restoreWithoutOVS, Detached},
		{"reboot", (*fixture).reboot, Detached},
	}
}

func (f *fixture) nextAgent() {
	f.t.Helper()
	if err := f.attach(); err != nil {
		f.t.Errorf("attach: %v", err)
	}
}

// restoreWithoutOVS restores while both daemons are dead, and starts them again: they must not take the NIC.
func (f *fixture) restoreWithoutOVS() {
	f.t.Helper()
	f.ovs.Vswitchd.Kill()
	f.ovs.Server.Kill()
	if err := f.restore(); err != nil {
		f.t.Errorf("restore: %v", err)
	}
	f.reached()
	f.ovs.Server.Start()
	f.ovs.Vswitchd.Start()
}

const otherBoot = "00000000-1111-2222-3333-444444444444"

// reboot keeps journal and database, and recreates everything else. Open vSwitch starts first, without an agent.
func (f *fixture) reboot() {
	f.t.Helper()
	f.ovs.Vswitchd.Kill()
	f.ovs.Server.Kill()
	id, err := bootid.Read()
	if err != nil {
		f.t.Fatal(err)
	}
	f.bootJournal(id, otherBoot)
	f.bootRows(f.ovs.Dir+"/conf.db", otherBoot)
	if f.pins != "" {
		os.RemoveAll(f.pins)
	}
	f.boot(f.config)
	f.before = f.state()
	f.bootScript()
	f.ovs.Server.Start()
	f.ovs.Vswitchd.Start()
}

// bootScript is what runs before Open vSwitch starts.
func (f *fixture) bootScript() {
	f.t.Helper()
	cmd := exec.Command("nsenter", "--net="+f.node.Path, "--", "sh", "../../build/ovs/fairlead-uplink-boot")
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+f.ovs.Dir, "OVS_DBDIR="+f.ovs.Dir, "FAIRLEAD_JOURNAL="+f.journal)
	if out, err := cmd.CombinedOutput(); err != nil {
		f.t.Fatalf("boot unit: %v: %s", err, out)
	}
}

// bootJournal rewrites the journal on disk as one of another boot, and deletes the copy in memory, as a reboot does.
func (f *fixture) bootJournal(old, now string) {
	f.t.Helper()
	if err := os.RemoveAll(journal.InMemory(f.journal)); err != nil {
		f.t.Fatal(err)
	}
	text, err := os.ReadFile(f.journal)
	if err != nil { // no journal
		return
	}
	j, err := journal.Parse(text)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, id := range []*string{&j.BootID, &j.Bridge.BootID} {
		if *id == old {
			*id = now
		}
	}
	if text, err = journal.Encode(j); err == nil {
		err = os.WriteFile(f.journal, text, 0o600)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// bootRows rewrites the rows in a database, whose records have checksums, as those of another boot.
func (f *fixture) bootRows(file, now string) {
	f.t.Helper()
	where := `[["external_ids","includes",["map",[["fairlead","uplink"]]]]]`
	ids := fmt.Sprintf(`["map",[["fairlead","uplink"],["fairlead-boot-id","%s"]]]`, now)
	if _, err := f.ovs.Run("ovsdb-tool", "transact", file, fmt.Sprintf(
		`["Open_vSwitch",{"op":"update","table":"Bridge","where":%s,"row":{"external_ids":%s}}]`, where, ids)); err != nil {
		f.t.Fatal(err)
	}
}

// After a SIGKILL behind any step of attach, roll-back and restore the node recovers, with all that it had.
func TestRootDeathAtEveryStep(t *testing.T) {
	deathAtEveryStep(t, func(t *testing.T, config string) *fixture { return setup(t, config, noDAD()...) })
}

// deathAtEveryStep has a node for each operation and recovery. In a guest each operation has one node, which recovers
// without Open vSwitch at every point, because what that removes from the kernel depends on the datapath, and in the
// two other ways at every third point; nothing there has a lifetime, which a reboot would restart.
func deathAtEveryStep(t *testing.T, setup func(t *testing.T, config string) *fixture) {
	ways := recoveries()
	inGuest := func(n int) []recovery {
		return [][]recovery{{ways[1]}, {ways[1], ways[2]}, {ways[1], ways[0]}}[n%3]
	}
	for _, op := range []string{"attach", "roll back", "restore"} {
		if someSteps(t) {
			t.Run(op, func(t *testing.T) {
				t.Parallel()
				setup(t, steady()).killAtEveryStep(op, inGuest)
			})
			continue
		}
		for _, r := range ways {
			t.Run(op+"/"+r.name, func(t *testing.T) {
				t.Parallel() // mostly waits for Open vSwitch and the kernel
				setup(t, rich).killAtEveryStep(op, always(r))
			})
		}
	}
}

// someSteps reports whether only some recoveries are tried after each step: in a guest each try takes a second of CPU
// time. A long run tries all of them.
func someSteps(t *testing.T) bool {
	return ovstest.UnderTest(t) == ovstest.System && os.Getenv("FAIRLEAD_TEST_LONG") == ""
}

// br-uplink is recreated in two transactions. After a SIGKILL between them, or at any step of the second one, the next
// agent completes the work.
func TestRootDeathWhileRebuilding(t *testing.T) {
	t.Parallel()
	setup(t, simple, noDAD()...).killAtEveryStep("rebuild", always(recoveries()[0]))
}

// always recovers in one way.
func always(r recovery) func(point int) []recovery {
	return func(int) []recovery { return []recovery{r} }
}

// atSome is always, but in a guest only at every third point. It is for operations with the steps of a restore, after
// each of which TestRootDeathAtEveryStep kills as well.
func atSome(t *testing.T, r recovery) func(point int) []recovery {
	if !someSteps(t) {
		return always(r)
	}
	return func(n int) []recovery {
		if n%3 != 1 {
			return nil
		}
		return []recovery{r}
	}
}

// killAtEveryStep kills op at each of its points, counted from 1, and recovers in the ways that at returns.
func (f *fixture) killAtEveryStep(op string, at func(point int) []recovery) {
	f.before = f.state()
	f.nextAgent()
	f.attached = f.state()
	for n := 1; ; n++ {
		for _, r := range at(n) {
			if f.goTo(op); f.t.Failed() {
				return
			}
			what := f.run(op, n)
			if what == "" {
				f.t.Logf("%s has no point %d to be killed at", op, n)
				return
			}
			r.do(f)
			f.checkAfter(r.end, fmt.Sprintf("killed after %q, then %s", what, r.name))
		}
	}
}

// SIGKILL in the middle of steps, at any time. SEED repeats the times.
func TestRootDeathAtAnyTime(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if stored := chaos.Seeds(t); len(stored) > 0 {
		seed = stored[0]
	}
	t.Logf("SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	f := setup(t, rich)
	f.before = f.state()
	begin := time.Now()
	f.run("attach", 0)
	took := time.Since(begin)
	f.attached = f.state()
	for i, limit := 0, chaos.Time(t, 0); i < 6 || time.Since(begin) < limit; i++ {
		op := []string{"attach", "roll back", "restore"}[i%3]
		way := recoveries()[r.IntN(2)]
		if f.goTo(op); t.Failed() {
			return
		}
		after := time.Duration(r.Int64N(int64(took)))
		f.runFor(op, after)
		way.do(f)
		f.checkAfter(way.end, fmt.Sprintf("%s, killed after %s, then %s", op, after, way.name))
	}
}

// runFor runs the child and kills it.
func (f *fixture) runFor(op string, d time.Duration) {
	f.t.Helper()
	cmd := f.command(op, 0)
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	time.AfterFunc(d, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait() // it may have completed before
}

// goTo brings the node to the state in which op begins.
func (f *fixture) goTo(op string) {
	f.t.Helper()
	if op == "restore" || op == "yield" || op == "rebuild" {
		f.nextAgent()
		f.refresh(f.open().Journal().Holder())
	} else if err := f.restore(); err != nil {
		f.t.Errorf("between two tests: %v", err)
	} else {
		f.refresh(nic)
	}
}

// refresh sets lifetimes to what should be left of them: each move costs them up to a second, and there are many.
func (f *fixture) refresh(dev string) {
	f.t.Helper()
	if !strings.Contains(f.config, "expires") {
		return
	}
	flags := "nodad mngtmpaddr"
	if dev == BridgeName {
		flags += " noprefixroute"
	}
	f.batch(fmt.Sprintf(`-6 route replace fd01::/64 via fd00::2 dev %[1]s mtu 1400 expires %[2]s
-6 route replace fd00:1::/64 dev %[1]s proto kernel metric 256 expires %[3]s
-6 addr change fd00:1::ff:fe00:11/64 dev %[1]s %[4]s valid_lft %[5]s preferred_lft %[6]s
`, dev, f.left("to fd01:: .*expires"), f.left("to fd00:1:: .*expires"), flags, f.left("valid"), f.left("preferred")))
}

// left is how many seconds should be left of a lifetime that the node had before.
func (f *fixture) left(what string) string {
	f.t.Helper()
	m := regexp.MustCompile(what + `=(\d+)s`).FindStringSubmatch(strings.Join(f.before.Lines, "\n"))
	if m == nil {
		f.t.Fatalf("the node had no lifetime %q", what)
	}
	seconds, err := strconv.Atoi(m[1])
	if err != nil {
		f.t.Fatal(err)
	}
	return strconv.Itoa(seconds - int((hoststate.SinceBoot() - f.before.At).Seconds()))
}

func (f *fixture) checkAfter(end Phase, what string) {
	f.t.Helper()
	f.reached()
	want := f.before
	if end == Attached {
		want = f.attached
	}
	f.sameSoon(want, what)
}

// sameSoon waits for what Open vSwitch and the kernel do asynchronously.
func (f *fixture) sameSoon(want netstate.Node, what string) {
	f.t.Helper()
	var d []string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(ovstest.Pause(f.t)) {
		if d = want.Differences(f.state()); len(d) == 0 {
			return
		}
	}
	f.t.Errorf("%s: the node is not as it was:\n%s", what, strings.Join(d, "\n"))
}

// A rule is renamed by adding one and removing the other. After a SIGKILL in between it has both names, and the next
// agent removes the NIC's.
func TestRootRuleUnderBothNames(t *testing.T) {
	t.Parallel()
	const rule = "rule add iif eth0 table 100 priority 100"
	f := setup(t, simple+"\n"+rule, noDAD()...)
	f.nextAgent()
	f.attached = f.state()
	f.node.IP(rule)
	f.nextAgent()
	f.checkAfter(Attached, "a rule had both names")
}
