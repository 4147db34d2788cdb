// Package uninstall removes from a node all that agents have put there, and restores what they have changed. Each kind
// of resource is recognised as by its applier (datapath/doc.go).
package uninstall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/rundir"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver/conflist"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/nat"
	"github.com/fairlead-cni/fairlead/datapath/route"
	"github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/datapath/uplink/rows"
	"github.com/fairlead-cni/fairlead/datapath/uplink/vport"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
)

// stateDir is where a node keeps what outlives a boot, in directories of this and other packages.
const stateDir = "/var/lib/fairlead"

// takenWait is how long Run waits for ovs-vswitchd to remove interfaces.
const takenWait = 10 * time.Second

// Options are what Run needs.
type Options struct {
	// OVSRunDir has the sockets of Open vSwitch.
	OVSRunDir string
	// DryRun changes nothing and prints what would be done.
	DryRun bool
	// Out gets a line for everything that was done.
	Out io.Writer
	Log logr.Logger
}

// Run removes from the node all that agents have put there, and restores what they have changed. No agent may run
// meanwhile. It may be interrupted at any time, and repeated: it recognises what is left as an agent would. If a step
// fails, the rest is still done.
func Run(ctx context.Context, o Options) error {
	unlock, err := rundir.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	u := uninstall{Options: o}
	for _, step := range []func(context.Context) error{
		// First what brings new pods here, then the node's own network, then the rest. Routes come before the gateway is
		// removed, which would take them along.
		u.conflist, u.uplink, u.veths, u.routes, u.openVSwitch, u.iptables, u.plugins, u.state,
	} {
		if err := step(ctx); err != nil {
			u.errs = append(u.errs, err)
		}
		if ctx.Err() != nil {
			if !o.DryRun { // after an earlier run that finished, only the lock would be left
				_ = os.Remove(rundir.LockPath)
				_ = os.Remove(rundir.Path) // something may be in it
			}
			return errors.Join(append(u.errs, errors.New("interrupted before the end. Run the command again"))...)
		}
	}
	if err := errors.Join(u.errs...); err != nil {
		return fmt.Errorf("something is left on this node. Fix the following and run the command again:\n%w", err)
	}
	switch {
	case !u.said:
		fmt.Fprintln(u.Out, "there is nothing of Fairlead to remove from this node")
	case !o.DryRun:
		u.printf("done: this node is as it was, except for forwarding, which stays on (net.ipv4.ip_forward, net.ipv6.conf.*.forwarding)")
	}
	return nil
}

// uninstall is the state of one run.
type uninstall struct {
	Options
	errs []error
	said bool
	// restored is the uplink's bridge, which was removed by its restore, or would be.
	restored string
}

func (u *uninstall) printf(format string, args ...any) {
	u.said = true
	prefix := ""
	if u.DryRun {
		prefix = "would be done: "
	}
	fmt.Fprintf(u.Out, prefix+format+"\n", args...)
}

func (u *uninstall) conflist(context.Context) error {
	if _, err := os.Stat(conflist.DefaultPath); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if !u.DryRun {
		if err := conflist.Remove(conflist.DefaultPath); err != nil {
			return err
		}
	}
	u.printf("%s removed: the node is NotReady until another network is installed", conflist.DefaultPath)
	return nil
}

func (u *uninstall) uplink(ctx context.Context) error {
	up, err := uplink.Open(uplink.DefaultJournal, u.Log)
	if err != nil {
		return err
	}
	if up.Journal() == nil {
		if err := up.Find(ctx, u.OVSRunDir); err != nil {
			return err
		}
	}
	j := up.Journal()
	if j == nil || j.Phase == uplink.Detached {
		return nil
	}
	if !u.DryRun {
		if err := up.Restore(ctx, "Fairlead was uninstalled"); err != nil {
			return err
		}
	}
	u.printf("uplink %s restored", j.NIC.Name)
	u.restored = j.Bridge.Name
	return nil
}

// openVSwitch removes the rows from the database, and, if no ovs-vswitchd runs, what it has left in the kernel.
func (u *uninstall) openVSwitch(ctx context.Context) error {
	db := rows.Find(u.OVSRunDir)
	if !db.Running() && db.File == "" {
		return nil // there was never an Open vSwitch here, or its database was below /run and the node was rebooted
	}
	m, err := db.FindMarked(ctx)
	if err != nil || m.Empty() {
		return err
	}
	if !u.DryRun {
		if err := u.removeMarked(ctx, db, m); err != nil {
			return err
		}
	}
	for _, b := range m.Bridges {
		if b != u.restored {
			u.printf("bridge %s removed", b)
		}
	}
	if len(m.Ports) > 0 {
		u.printf("ports removed from bridges that stay: %s", strings.Join(m.Ports, ", "))
	}
	if m.Zones > 0 {
		u.printf("timeouts of %d conntrack zones removed", m.Zones)
	}
	if m.Keys {
		u.printf("Fairlead's keys in Open vSwitch's configuration removed")
	}
	return nil
}

func (u *uninstall) removeMarked(ctx context.Context, db rows.DB, m rows.Marked) error {
	if err := db.RemoveMarked(ctx, m); err != nil {
		return err
	}
	if db.Running() && vswitchd.Running(u.OVSRunDir) {
		ctx, cancel := context.WithTimeout(ctx, takenWait)
		defer cancel()
		return db.WaitApplied(ctx)
	}
	var errs []error
	for _, device := range m.Devices {
		errs = append(errs, vport.RemoveDevice(device))
	}
	if !m.Others {
		errs = append(errs, vport.RemoveDatapath())
	}
	return errors.Join(errs...)
}

func (u *uninstall) veths(context.Context) error {
	names, err := link.RemoveAll(u.DryRun)
	if len(names) > 0 {
		u.printf("%d pod interfaces removed: these pods have no network now. Delete them when another network is installed",
			len(names))
	}
	removed, rerr := link.RemoveNetns(api.ReachEnd, u.DryRun)
	if removed {
		u.printf("network namespace %s removed", api.ReachEnd)
	}
	return errors.Join(err, rerr)
}

func (u *uninstall) routes(context.Context) error {
	n, err := route.RemoveAll(u.DryRun)
	if n > 0 {
		u.printf("%d routes removed", n)
	}
	return err
}

func (u *uninstall) iptables(ctx context.Context) error {
	changes, err := nat.RemoveAll(ctx, u.DryRun)
	for _, c := range changes {
		u.printf("%s", c)
	}
	return err
}

func (u *uninstall) plugins(context.Context) error {
	did, err := conflist.Plugins{BinDir: conflist.DefaultBinDir, Kept: conflist.DefaultKept}.Uninstall(u.DryRun)
	for _, d := range did {
		u.printf("%s", d)
	}
	return err
}

// state removes the node's files, once what is recorded in them is done. A directory of allocations may have those of
// other nodes as well.
func (u *uninstall) state(context.Context) error {
	if len(u.errs) > 0 {
		return fmt.Errorf("%s is kept until the rest is done, which needs it", stateDir)
	}
	for _, dir := range []string{stateDir, rundir.Path} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		removed := false
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if e.Name() == "allocations" && holds(path) {
				fmt.Fprintf(u.Out, "%s left in place: it records which addresses are in use, perhaps by other nodes, too\n", path)
				continue
			}
			// Until it is removed, no agent can take the lock.
			removed = removed || path != rundir.LockPath
			if !u.DryRun {
				if err := os.RemoveAll(path); err != nil {
					return err
				}
			}
		}
		if removed {
			u.printf("state in %s removed", dir)
		}
		if !u.DryRun {
			_ = os.Remove(dir) // it may be a mount point, or not empty
		}
	}
	return nil
}

// holds reports whether the directory has files.
func holds(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) > 0
}
