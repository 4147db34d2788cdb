package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/build/ovs"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// Daemon is one of the two daemons of Open vSwitch.
type Daemon string

// The daemons of a node's Open vSwitch, and the guard beside it (build/ovs).
const (
	Vswitchd Daemon = "vswitchd"
	OVSDB    Daemon = "ovsdb"
	Guard    Daemon = "guard"
)

// Daemons are all daemons, the guard included.
func Daemons() []Daemon { return []Daemon{Vswitchd, OVSDB, Guard} }

// program is the daemon's executable and the name of its PID file.
func (d Daemon) program() string {
	switch d {
	case OVSDB:
		return "ovsdb-server"
	case Guard:
		return "fairlead-ovs-guard"
	}
	return "ovs-vswitchd"
}

// PID returns the process ID of a node's daemon, 0 if it is not running. Call it from outside the node.
func (d Daemon) PID(h host.Host) int { return pidIn(h, "/run/openvswitch/"+d.program()+".pid") }

// OVSStart starts those daemons of a node that are not running, all if none is named, and adds the node's addresses.
func (l *Lab) OVSStart(ctx context.Context, node string, which ...Daemon) error {
	h, n, err := l.node(node)
	if err != nil {
		return err
	}
	ovsdb := starts(which, OVSDB) && OVSDB.PID(h) == 0
	vswitchd := starts(which, Vswitchd) && Vswitchd.PID(h) == 0
	guard := starts(which, Guard) && Guard.PID(h) == 0 && !l.spec.NoGuard
	err = h.Do(func() error {
		if ovsdb {
			if err := vswitch.StartOVSDB(ctx, node); err != nil {
				return err
			}
		}
		if guard {
			if err := startGuard(); err != nil {
				return err
			}
		}
		if vswitchd {
			return vswitch.StartVswitchd(ctx, l.spec.Datapath)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("starting Open vSwitch on %s: %w", node, err)
	}
	if l.spec.Datapath == vswitch.System || OVSDB.PID(h) == 0 || Vswitchd.PID(h) == 0 {
		return nil
	}
	if l.underlay().OnBridge() {
		return l.underlay().MoveToBridge(ctx, h, n, l.spec.Nodes)
	}
	if l.spec.Uplink == api.UplinkSteer && l.spec.Mode == underlay.Bridge {
		return nil // no tunnel, so Open vSwitch resolves no neighbours itself
	}
	return l.underlay().TeachNeighbours(ctx, h, n, l.spec.Nodes)
}

func starts(which []Daemon, d Daemon) bool {
	for _, w := range which {
		if w == d {
			return true
		}
	}
	return len(which) == 0
}

// startGuard starts the guard and writes its PID as the other daemons do. Its output is in its log.
func startGuard() error {
	const script = "/run/lab/fairlead-ovs-guard"
	if err := os.WriteFile(script, []byte(ovs.Guard), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile("/var/log/openvswitch/fairlead-ovs-guard.log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("sh", "-c", `echo $$ >"$1" && exec "$2"`, "sh", "/run/openvswitch/fairlead-ovs-guard.pid", script)
	cmd.Env, cmd.Stdout, cmd.Stderr = host.Env(), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the guard: %w", err)
	}
	go cmd.Wait() // reaps it if this process lives on
	return nil
}

// OVSStop stops the daemons of a node with SIGTERM and waits until they have exited. If none is named, it stops Open
// vSwitch's own daemons, not the guard.
func (l *Lab) OVSStop(ctx context.Context, node string, which ...Daemon) error {
	return l.ovsSignal(ctx, node, unix.SIGTERM, which)
}

// OVSKill kills them with SIGKILL.
func (l *Lab) OVSKill(ctx context.Context, node string, which ...Daemon) error {
	return l.ovsSignal(ctx, node, unix.SIGKILL, which)
}

func (l *Lab) ovsSignal(ctx context.Context, node string, sig unix.Signal, which []Daemon) error {
	h, _, err := l.node(node)
	if err != nil {
		return err
	}
	if len(which) == 0 {
		which = []Daemon{Vswitchd, OVSDB}
	}
	for _, d := range which {
		if err := host.End(ctx, d.PID(h), sig); err != nil {
			return fmt.Errorf("ending %s on %s: %w", d.program(), node, err)
		}
	}
	return nil
}

// OVSWaited is how long the main thread of a node's ovs-vswitchd, which forwards packets on the userspace datapath, has
// been ready to run and did not run (Documentation/scheduler/sched-stats.rst of Linux). It is 0 on the kernel's
// datapath, whose packets do not wait for it.
func (l *Lab) OVSWaited(ctx context.Context, node string) (time.Duration, error) {
	if l.Datapath() == vswitch.System {
		return 0, nil
	}
	out, err := l.NodeExec(ctx, node, "sh", "-c", "cat /proc/$(cat /run/openvswitch/ovs-vswitchd.pid)/schedstat")
	if err != nil {
		return 0, err
	}
	var ran, waits int64
	if _, err := fmt.Sscan(out, &ran, &waits); err != nil {
		return 0, fmt.Errorf("reading schedstat %q of %s: %w", out, node, err)
	}
	return time.Duration(waits), nil
}
