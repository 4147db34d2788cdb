package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/build/ovs"
	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// Daemon is one of the two daemons of Open vSwitch.
type Daemon string

// The daemons of a node's Open vSwitch, and the guard beside it (build/ovs).
const (
	Vswitchd Daemon = "vswitchd"
	OVSDB    Daemon = "ovsdb"
	Guard    Daemon = "guard"
)

// Daemons are all of them.
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

const (
	ovsConf   = "/etc/openvswitch/conf.db"
	ovsSchema = "/usr/share/openvswitch/vswitch.ovsschema"
	ovsSocket = "unix:/run/openvswitch/db.sock"
)

// PID returns the process ID of a node's daemon, 0 if it does not run. Ask from outside the node.
func (d Daemon) PID(h host.Host) int { return pidIn(h, "/run/openvswitch/"+d.program()+".pid") }

// OVSStart starts the daemons of a node that do not run, all if none is named, and gives the node its addresses.
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
			if err := startOVSDB(ctx, node); err != nil {
				return err
			}
		}
		if guard {
			if err := startGuard(); err != nil {
				return err
			}
		}
		if vswitchd {
			return startVswitchd(ctx, l.spec.Datapath)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("starting Open vSwitch on %s: %w", node, err)
	}
	if l.spec.Datapath == System || OVSDB.PID(h) == 0 || Vswitchd.PID(h) == 0 {
		return nil
	}
	if l.spec.onBridge() {
		return moveToBridge(ctx, h, l.spec, n)
	}
	if l.spec.Uplink == api.UplinkSteer && l.spec.Mode == Bridge {
		return nil // no tunnel, no neighbours of Open vSwitch's own
	}
	return teachNeighbours(ctx, h, l.spec, n)
}

func starts(which []Daemon, d Daemon) bool {
	for _, w := range which {
		if w == d {
			return true
		}
	}
	return len(which) == 0
}

// startOVSDB and the following run on the node. Without --monitor: a daemon that was killed stays dead.
func startOVSDB(ctx context.Context, node string) error {
	if err := os.MkdirAll("/run/openvswitch", 0o755); err != nil {
		return err
	}
	if _, err := os.Stat(ovsConf); errors.Is(err, os.ErrNotExist) {
		if err := run(exec.CommandContext(ctx, "ovsdb-tool", "create", ovsConf, ovsSchema)); err != nil {
			return err
		}
	}
	err := run(exec.CommandContext(ctx, "ovsdb-server", ovsConf, "--remote=p"+ovsSocket,
		"--pidfile", "--log-file", "-vconsole:off", "--detach", "--no-chdir"))
	if err != nil {
		return err
	}
	return run(exec.CommandContext(ctx, "ovs-vsctl", "--timeout=10", "--no-wait", "init",
		"--", "set", "Open_vSwitch", ".", "external_ids:system-id="+node, "external_ids:hostname="+node))
}

func startVswitchd(ctx context.Context, d Datapath) error {
	args := []string{ovsSocket, "--pidfile", "--log-file", "-vconsole:off", "--detach", "--no-chdir"}
	if d == Netdev {
		args = append(args, "--disable-system")
	}
	return run(exec.CommandContext(ctx, "ovs-vswitchd", args...))
}

// startGuard keeps its PID as the others do. What it says is in its log.
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
	cmd.Env, cmd.Stdout, cmd.Stderr = cleanEnv(), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the guard: %w", err)
	}
	go cmd.Wait() // so that it is no zombie if this process lives on
	return nil
}

// OVSStop ends the daemons of a node with SIGTERM and waits for it. If none is named, these are those of Open
// vSwitch itself.
func (l *Lab) OVSStop(ctx context.Context, node string, which ...Daemon) error {
	return l.ovsSignal(ctx, node, unix.SIGTERM, which)
}

// OVSKill ends them with SIGKILL.
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
		if err := end(ctx, h, d.PID(h), sig); err != nil {
			return fmt.Errorf("ending %s on %s: %w", d.program(), node, err)
		}
	}
	return nil
}

// end sends sig to the process of h and waits until it is gone. A pid of 0 is gone already.
func end(ctx context.Context, h host.Host, pid int, sig unix.Signal) error {
	if pid == 0 {
		return nil
	}
	if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for h.Runs(pid) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d is still there: %w", pid, ctx.Err())
		case <-time.After(2 * time.Millisecond):
		}
	}
	return nil
}

// vswitchdCtl is a connection to ovs-vswitchd's control socket, what ovs-appctl(8) uses: JSON-RPC 1.0.
type vswitchdCtl struct {
	net.Conn
	answers *json.Decoder
}

// dialVswitchd connects on the node, where the socket's path is short enough for one (108 bytes, unix(7)).
func dialVswitchd(ctx context.Context, h host.Host) (vswitchdCtl, error) {
	socket := fmt.Sprintf("/run/openvswitch/ovs-vswitchd.%d.ctl", Vswitchd.PID(h))
	var conn net.Conn
	err := h.Do(func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, "unix", socket)
		return err
	})
	if err != nil {
		return vswitchdCtl{}, fmt.Errorf("connecting to ovs-vswitchd: %w", err)
	}
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return vswitchdCtl{}, err
	}
	return vswitchdCtl{conn, json.NewDecoder(conn)}, nil
}

func (c vswitchdCtl) call(command string, args ...string) error {
	request := map[string]any{"id": 0, "method": command, "params": args}
	if err := json.NewEncoder(c).Encode(request); err != nil {
		return fmt.Errorf("ovs-vswitchd %s: %w", command, err)
	}
	var answer struct{ Error any }
	if err := c.answers.Decode(&answer); err != nil {
		return fmt.Errorf("ovs-vswitchd %s: %w", command, err)
	}
	if answer.Error != nil {
		return fmt.Errorf("ovs-vswitchd %s: %v", command, answer.Error)
	}
	return nil
}
