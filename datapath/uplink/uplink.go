package uplink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
	"github.com/fairlead-cni/fairlead/datapath/uplink/preflight"
	"github.com/fairlead-cni/fairlead/datapath/uplink/rows"
	"github.com/fairlead-cni/fairlead/datapath/uplink/steer"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/internal/bootid"
)

const (
	// stepLimit bounds one step: Open vSwitch replies in milliseconds, or not at all.
	stepLimit = 10 * time.Second
	// maxSteps ends an attach or restore that makes no progress. There are 9 steps.
	maxSteps = 60
	// lockWait is how long to wait for another process that is attaching or restoring.
	lockWait = 60 * time.Second
	// checkEvery is the interval of checks whether the node is reachable.
	checkEvery = 200 * time.Millisecond
)

// Names of package rows.
const (
	BridgeName = rows.BridgeName
	PatchPort  = rows.PatchPort
	PeerPort   = rows.PeerPort
)

// Names of package journal.
type (
	Journal = journal.Journal
	Phase   = journal.Phase
)

// The phases of a journal.
const (
	Attaching = journal.Attaching
	Attached  = journal.Attached
	Restoring = journal.Restoring
	Detached  = journal.Detached
)

// DefaultJournal is where the journal is on every node.
const DefaultJournal = journal.Default

// defaultRunDir is where Open vSwitch has its sockets unless journal or environment say otherwise.
const defaultRunDir = "/run/openvswitch"

// Plan says what to attach, and how.
type Plan struct {
	// Mode is api.UplinkSteer, api.UplinkAuto or api.UplinkBridge; empty: bridge. Auto leaves an attached uplink in its
	// mode.
	Mode string
	// Tunnels: nodes send each other tunnel packets.
	Tunnels bool
	// Pins is the directory for the programs of mode steer; empty: DefaultPins. Hooks is the kind of hooks, for tests.
	Pins  string
	Hooks steer.Hooks
	// NIC is the name of the interface.
	NIC string
	// Datapath is api.DatapathSystem or api.DatapathNetdev, as for the pods' bridge.
	Datapath string
	// OVSRunDir contains db.sock.
	OVSRunDir string
	// Check returns nil if the node is reachable through the uplink. It is repeated until it succeeds, for RollbackAfter.
	Check         func(context.Context) error `json:"-"`
	RollbackAfter time.Duration
	// RetryAfter is the wait before another attach after one was undone. It doubles each time, up to 64 times as long.
	// Zero: at once.
	RetryAfter time.Duration
	// Automatic: this attach was not requested. An uplink restored on request meanwhile is left alone.
	Automatic bool
	// AllowManaged allows attaching a NIC that a network manager manages.
	AllowManaged bool

	notSteer string // why mode auto's attempt at steer failed
}

// Uplink attaches and restores the NIC. One process does at a time: it locks the journal's directory.
type Uplink struct {
	path   string
	bootID string
	log    logr.Logger
	// after is called after each step and each write of the journal, for tests.
	after func(what string)

	journal *Journal
	// unwritable is why the journal could not be written to disk, recorded whether it or its copy was.
	unwritable error
	recorded   bool
	rebuilt    bool     // the journal was, by found
	runDir     string   // of Open vSwitch, if no journal says it
	pins       string   // of the programs of mode steer, likewise
	did        []string // steps that run has carried out
	// noDB is why Open vSwitch's database is unavailable, while run goes back. It is not queried again: one that hangs
	// would keep the node waiting for its network.
	noDB error
}

// ErrRolledBack says that an attach failed and that the NIC is as it was before.
var ErrRolledBack = errors.New("the NIC is restored")

// ErrNotRecorded says that the NIC is restored, but that the journal still has it attached.
var ErrNotRecorded = errors.New("the NIC is restored, but its journal could not be written, so the next agent attaches " +
	"it again. Make its file system writable and free some space, then restore it once more")

// Open reads the journal at path, and its copy in memory. If neither is usable, Journal is nil until the first call
// that works on the uplink has observed the node: see Find.
func Open(path string, log logr.Logger) (*Uplink, error) {
	id, err := bootid.Read()
	if err != nil {
		return nil, err
	}
	return &Uplink{path: path, bootID: id, log: log, after: func(string) {}, journal: journal.Read(path, id).Newest,
		runDir: cmp.Or(os.Getenv("OVS_RUNDIR"), defaultRunDir), pins: DefaultPins}, nil
}

// Find reads the journal again. Without a usable one, it looks for an uplink on the node, with Open vSwitch's database
// in runDir, and rebuilds the journal from what it finds: that journal leads back, and Unfinished reports it.
func (u *Uplink) Find(ctx context.Context, runDir string) error {
	u.runDir = runDir
	unlock, err := u.lock(ctx)
	if err != nil {
		return err
	}
	unlock()
	return nil
}

// Journal returns the journal as last read or written, nil if there is none.
func (u *Uplink) Journal() *Journal { return u.journal }

// Unfinished reports whether steps may remain: an attach or a restore was begun, or the journal is of another boot.
func (u *Uplink) Unfinished() bool {
	j := u.journal
	return j != nil && (j.BootID != u.bootID || j.Phase == Attaching || j.Phase == Restoring)
}

// Attached reports whether an attach in this boot has succeeded.
func (u *Uplink) Attached() bool {
	return u.journal != nil && u.journal.BootID == u.bootID && u.journal.Phase == Attached
}

// ThisBoot reports whether the journal is of this boot.
func (u *Uplink) ThisBoot() bool { return u.journal != nil && u.journal.BootID == u.bootID }

// Repair restores what is missing of an attached uplink, and returns the steps that this took. It does nothing if the
// NIC was restored meanwhile.
func (u *Uplink) Repair(ctx context.Context) (steps []string, err error) {
	unlock, err := u.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if !u.Attached() {
		return nil, nil
	}
	if u.journal.UplinkMode() == api.UplinkBridge {
		if why, _ := u.absent(ctx); why != "" {
			return nil, nil // nothing can be repaired then: see Yield
		}
	}
	if device, err := findLink(BridgeName); err == nil && device != nil {
		hoststate.DropRedundantRoutes(iface(device))
	}
	u.did = nil
	err = errors.Join(u.followMTU(), u.run(ctx))
	_ = u.tryDisk() // see Unwritable
	return u.did, err
}

// followMTU sets br-uplink's MTU to the NIC's if that was changed since.
func (u *Uplink) followMTU() error {
	nic, err := findLink(u.journal.NIC.Name)
	if err != nil || nic == nil || nic.Attrs().MTU == u.journal.Bridge.MTU {
		return err
	}
	u.journal.Bridge.MTU = nic.Attrs().MTU
	_ = u.recordUndo("mtu") // the NIC has it anyway
	return nil
}

// Attach makes p.NIC a port of Open vSwitch, or continues an attach that was begun, or reverts external changes to a
// successful one. If it fails, or the check does not succeed in time, it restores the NIC; the error then is
// ErrRolledBack as well, unless that fails too.
func (u *Uplink) Attach(ctx context.Context, p Plan) error {
	u.runDir, u.pins = p.OVSRunDir, p.pins()
	unlock, err := u.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	err = u.attach(ctx, p)
	if p.Mode == api.UplinkAuto && errors.Is(err, ErrRolledBack) && u.journal.UplinkMode() == api.UplinkSteer &&
		!u.journal.Unreached && u.journal.Yielded == "" && !errors.As(err, new(*journal.Error)) {
		p.Mode, p.notSteer = api.UplinkBridge, u.journal.Reason
		u.journal.Tries-- // both modes are one attempt
		err = u.attach(ctx, p)
	}
	return err
}

func (u *Uplink) attach(ctx context.Context, p Plan) error {
	if err := u.finish(ctx); err != nil || p.Automatic && u.Manual() {
		return err
	}
	if err := u.leaveOtherMode(ctx, p); err != nil {
		return err
	}
	if u.journal == nil || u.journal.Phase == Detached {
		if err := u.begin(ctx, p); err != nil {
			return err
		}
	}
	if u.journal.NIC.Name != p.NIC {
		return fmt.Errorf("%s is attached, not %s: restore it first", u.journal.NIC.Name, p.NIC)
	}
	if u.journal.Phase == Attached {
		return u.repair(ctx)
	}
	if err := u.run(ctx); err != nil {
		return u.rollBack(ctx, err, p, false)
	}
	err := u.verify(ctx, p)
	if err == nil || ctx.Err() != nil { // a process that is ending leaves the check to the next one
		return err
	}
	return u.rollBack(ctx, err, p, !errors.As(err, new(*journal.Error)))
}

// Finish completes a restore that was begun, or removes what is left of an uplink of another boot.
func (u *Uplink) Finish(ctx context.Context) error {
	unlock, err := u.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return u.finish(ctx)
}

func (u *Uplink) finish(ctx context.Context) error {
	if u.journal == nil || u.ThisBoot() && u.journal.Phase != Restoring {
		return nil
	}
	if err := u.run(ctx); err != nil {
		return fmt.Errorf("finishing an earlier restore: %w", err)
	}
	return nil
}

// leaveOtherMode restores an uplink that is attached or attaching in another mode than p wants.
func (u *Uplink) leaveOtherMode(ctx context.Context, p Plan) error {
	want := p.Mode
	if want == "" {
		want = api.UplinkBridge
	}
	j := u.journal
	if j == nil || j.Phase == Detached || want == api.UplinkAuto || want == j.UplinkMode() {
		return nil
	}
	err := u.tryDisk() // otherwise it could not be attached again
	if err == nil {
		journal.StartRestore(j, "the mode is to be "+want)
		if err = u.write("restore"); err == nil {
			err = u.run(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("leaving mode %s: %w", j.UplinkMode(), err)
	}
	return nil
}

// begin records what the NIC has, if it can be attached safely.
func (u *Uplink) begin(ctx context.Context, p Plan) error {
	report, err := u.Preflight(ctx, p)
	if err != nil {
		return err
	}
	if len(report.Refused) > 0 {
		return &preflight.RefusedError{Report: report}
	}
	if report.NotSteer = cmp.Or(report.NotSteer, p.notSteer); report.NotSteer != "" {
		u.log.Info("using mode bridge because mode steer is not possible", "nic", p.NIC, "reason", report.NotSteer)
	}
	nic, err := hoststate.Read(p.NIC)
	if err != nil {
		return err
	}
	j := &Journal{Version: journal.Version, BootID: u.bootID, Phase: Attaching, NIC: nic, DB: rows.Find(p.OVSRunDir),
		Bridge: rows.Bridge{Name: BridgeName, Patch: PatchPort, Peer: PeerPort, Datapath: p.Datapath, MAC: nic.MAC,
			MTU: nic.MTU, BootID: u.bootID}, Mode: report.Mode, NotSteer: report.NotSteer}
	if j.Mode == api.UplinkSteer {
		j.Pins, j.Hooks = p.pins(), p.Hooks
		journal.LeaveWithHost(j)
	}
	before := u.journal
	if u.journal = j; before != nil {
		j.Seq = before.Seq
		if before.Unreached || before.Failed {
			j.Tries, j.RetryAt = before.Tries, before.RetryAt
		}
	}
	if err := u.write("begin"); err != nil {
		u.journal = before
		return fmt.Errorf("%s is not attached, since its configuration could not be recorded: %w", p.NIC, err)
	}
	return nil
}

// Restore restores the NIC as the journal has it. reason replaces the journal's, even if the NIC is already restored.
// It needs no ovs-vswitchd, and either ovsdb-server or its file. Without a journal there is nothing to do.
func (u *Uplink) Restore(ctx context.Context, reason string) error {
	unlock, err := u.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	switch {
	case u.journal == nil, u.isDetached() && u.journal.Reason == reason:
		return nil
	case u.isDetached():
		journal.StartRestore(u.journal, reason)
		u.journal.Phase = Detached
		return u.recordUndo("restore")
	}
	return u.restore(ctx, reason, "")
}

// restore begins a restore, or continues one. yielded is for the journal.
func (u *Uplink) restore(ctx context.Context, reason, yielded string) error {
	journal.StartRestore(u.journal, reason)
	u.journal.Yielded = yielded
	_ = u.recordUndo("restore") // a full disk is no reason to leave the node without its network
	return u.run(ctx)
}

// rollBack restores because of why, and postpones the next attach. unreached: the attach was complete, but the network
// was unreachable.
func (u *Uplink) rollBack(ctx context.Context, why error, p Plan, unreached bool) error {
	u.log.Error(why, "restoring the NIC", "nic", u.journal.NIC.Name)
	j := u.journal
	journal.StartRestore(j, why.Error())
	_, j.Yielded = u.absent(context.WithoutCancel(ctx))
	j.Unreached = unreached && j.Yielded == "" // else Open vSwitch did not answer, and the next attach waits for it
	j.Failed = !unreached
	if j.Unreached || j.Failed {
		journal.Postpone(j, p.RetryAfter)
	}
	_ = u.recordUndo("roll back") // as in restore
	err := u.run(ctx)
	if errors.Is(err, ErrNotRecorded) {
		return fmt.Errorf("%w; %w: %w", why, ErrRolledBack, err)
	}
	if err != nil {
		return fmt.Errorf("%w; and restoring %s failed: %w", why, u.journal.NIC.Name, err)
	}
	return fmt.Errorf("%w; %w", why, ErrRolledBack)
}

func (u *Uplink) verify(ctx context.Context, p Plan) error {
	deadline := time.Now().Add(p.RollbackAfter)
	for {
		try, cancel := context.WithDeadline(ctx, deadline)
		err := p.Check(try)
		cancel()
		if err == nil {
			u.journal.Phase, u.journal.Reason, u.journal.Unreached, u.journal.Yielded = Attached, "", false, ""
			if err := u.write(stepVerify); err != nil {
				return err
			}
			u.log.Info("uplink attached", "nic", p.NIC, "bridge", BridgeName, "mode", u.journal.UplinkMode())
			return nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("the network is not reachable through %s after %s: %w", u.journal.Holder(), p.RollbackAfter, err)
		}
		time.Sleep(checkEvery)
	}
}

// run does the remaining steps, even in a process that is ending: the node is not left halfway. What failed on the way
// back is retried once after the rest.
func (u *Uplink) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxSteps*time.Second)
	defer cancel()
	again, err := u.pass(ctx)
	if again {
		_, err = u.pass(ctx)
	}
	return err
}

// described returns a step with its cause, if known.
func described(s Step, o Observed) string {
	if s.Name == stepBridge && !s.Back && len(o.Wrong) > 0 {
		return fmt.Sprintf("%s (%s)", s, strings.Join(o.Wrong, ", "))
	}
	return s.String()
}

// pass does what Next says until nothing is left, or a step forward fails. A step back that fails is skipped, and the
// others are done nevertheless.
func (u *Uplink) pass(ctx context.Context) (again bool, err error) {
	var failed []string
	var errs []error
	u.noDB = nil
	times := map[Step]int{}
	for range maxSteps {
		o, dbErr, err := u.observe(ctx)
		if err != nil {
			return false, err
		}
		if goesBack(*u.journal, o) {
			if u.noDB = dbErr; dbErr != nil && u.wouldBeTakenAgain(o) {
				return false, fmt.Errorf("%w. ovs-vswitchd would attach %s again at once, so nothing was changed: restart or stop ovsdb-server, and repeat this", dbErr, u.journal.NIC.Name)
			}
		}
		o.Failed = failed
		step := Next(*u.journal, o)
		if step.Name == "" || step.Name == stepVerify {
			return len(failed) > 0, u.ended(o, errors.Join(append(errs, dbErr)...))
		}
		if err := u.write(step.String()); err != nil {
			if !step.Back && u.journal.Phase != Attached {
				return false, err
			}
			// The journal has all that restore needs: a full disk must not keep the node from its network.
			u.log.Error(err, "writing the journal failed, continuing without it", "step", step.String())
		}
		if err = u.carryOut(ctx, step); err == nil {
			u.did = append(u.did, described(step, o))
			u.after("done " + step.String())
			if times[step]++; times[step] < 3 {
				continue
			}
			err = errors.New("its effect does not last: is another program configuring the interfaces?")
		}
		err = fmt.Errorf("step %q: %w", step.String(), err)
		if !step.Back {
			return false, err
		}
		failed, errs = append(failed, step.Name), append(errs, err)
	}
	return false, fmt.Errorf("not finished after %d steps: is another program configuring the interfaces?", maxSteps)
}

// wouldBeTakenAgain reports whether freeing the NIC is pointless while its row stays in the database, since
// ovs-vswitchd still follows it. On the userspace datapath it only receives copies of the frames.
func (u *Uplink) wouldBeTakenAgain(o Observed) bool {
	return o.Taken && !o.Mutes && vswitchd.Running(u.journal.DB.RunDir) && u.journal.Yielded != hungStart
}

func (u *Uplink) carryOut(ctx context.Context, s Step) error {
	if s.Back {
		return u.undo(ctx, s.Name)
	}
	return u.do(ctx, s.Name)
}

func (s Step) String() string {
	if s.Back {
		return "undo " + s.Name
	}
	return s.Name
}

// ended records that a restore has ended. err says what failed on the way.
func (u *Uplink) ended(o Observed, err error) error {
	if !goesBack(*u.journal, o) {
		return nil
	}
	if !undone(*u.journal, o) || !o.RowsKnown {
		return fmt.Errorf("the uplink was not completely restored: %w", err)
	}
	if !o.SameBoot {
		journal.StartRestore(u.journal, Rebooted)
	}
	u.journal.Phase, u.journal.BootID = Detached, u.bootID
	if err := u.recordUndo("detached"); err != nil {
		return err
	}
	u.log.Info("uplink detached", "nic", u.journal.NIC.Name, "reason", u.journal.Reason)
	return nil
}

func (u *Uplink) mutes() bool { return u.journal.Bridge.Datapath == api.DatapathNetdev }

var errNICGone = errors.New("the NIC does not exist any more")
