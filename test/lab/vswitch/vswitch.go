// Package vswitch starts Open vSwitch on the hosts of a lab, and connects to the one that runs there.
package vswitch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/ovsrelease"
)

// Datapath is Open vSwitch's datapath type.
type Datapath string

// The datapaths of a lab: Netdev in Open vSwitch's own process, System in the kernel, Auto in the kernel if it supports
// it.
const (
	Netdev Datapath = "netdev"
	System Datapath = "system"
	Auto   Datapath = "auto"
)

const (
	ovsConf   = "/etc/openvswitch/conf.db"
	ovsSocket = "unix:/run/openvswitch/db.sock"
)

// KernelDatapath returns why this kernel cannot be Open vSwitch's datapath; nil if it can.
func KernelDatapath() error {
	// A lookup of the family makes the kernel load the module if it has it.
	if _, err := netlink.GenlFamilyGet("ovs_datapath"); err != nil {
		return fmt.Errorf("this kernel has no openvswitch module (%w): use --datapath netdev; "+
			"or lab --uml -- SCRIPT, which runs labs in a kernel that has it; or try: modprobe openvswitch", err)
	}
	return nil
}

// StartOVSDB starts ovsdb-server on the host of the calling thread, with a new database if there is none. As with
// StartVswitchd there is no --monitor: a killed daemon is not restarted.
func StartOVSDB(ctx context.Context, node string) error {
	if err := os.MkdirAll("/run/openvswitch", 0o755); err != nil {
		return err
	}
	if _, err := os.Stat(ovsConf); errors.Is(err, os.ErrNotExist) {
		schema, err := ovsrelease.Schema()
		if err != nil {
			return err
		}
		if err := host.Run(exec.CommandContext(ctx, "ovsdb-tool", "create", ovsConf, schema)); err != nil {
			return err
		}
	}
	err := host.Run(exec.CommandContext(ctx, "ovsdb-server", ovsConf, "--remote=p"+ovsSocket,
		"--pidfile", "--log-file", "-vconsole:off", "--detach", "--no-chdir"))
	if err != nil {
		return err
	}
	return host.Run(exec.CommandContext(ctx, "ovs-vsctl", "--timeout=60", "--no-wait", "init",
		"--", "set", "Open_vSwitch", ".", "external_ids:system-id="+node, "external_ids:hostname="+node))
}

// PID is the process ID of the ovs-vswitchd on the host of the calling thread.
func PID() (int, error) {
	text, err := os.ReadFile("/run/openvswitch/ovs-vswitchd.pid")
	if err != nil {
		return 0, fmt.Errorf("finding ovs-vswitchd: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// StartVswitchd starts ovs-vswitchd on the host of the calling thread. ovsdb-server must run.
func StartVswitchd(ctx context.Context, d Datapath) error {
	args := []string{ovsSocket, "--pidfile", "--log-file", "-vconsole:off", "--detach", "--no-chdir"}
	if d == Netdev {
		args = append(args, "--disable-system")
	}
	if err := host.Run(exec.CommandContext(ctx, "ovs-vswitchd", args...)); err != nil {
		return err
	}
	return verify(ctx)
}

// verify returns an error if a daemon is not of the required release of Open vSwitch.
func verify(ctx context.Context) error {
	if ovsrelease.Wanted() == "" {
		return nil
	}
	for _, daemon := range []string{"ovsdb-server", "ovs-vswitchd"} {
		ask := exec.CommandContext(ctx, "ovs-appctl", "--timeout=60", "--target="+daemon, "version")
		ask.Env = host.Env()
		version, err := ask.Output()
		if err == nil {
			err = ovsrelease.Verify(string(version))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", daemon, err)
		}
	}
	return nil
}
