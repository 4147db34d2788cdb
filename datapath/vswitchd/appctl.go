package vswitchd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/jsonrpc"
)

// appctlTimeout bounds one command; all take milliseconds, but an ovs-vswitchd that hangs accepts the connection.
const appctlTimeout = 2 * time.Second

// Appctl runs a command of ovs-vswitchd(8) in the ovs-vswitchd of that run directory, and returns its output. It waits
// 2 s at most. It fails if no ovs-vswitchd answers or it rejects the command.
func Appctl(ctx context.Context, runDir, command string, args ...string) (string, error) {
	text, err := appctl(ctx, runDir, command, args)
	if err != nil {
		return "", fmt.Errorf("ovs-appctl %s: %w", command, err)
	}
	return text, nil
}

// Version returns the version of the running ovs-vswitchd, such as 3.1.0.
func Version(ctx context.Context, runDir string) (string, error) {
	text, err := Appctl(ctx, runDir, "version")
	if err != nil {
		return "", err
	}
	words := strings.Fields(text) // ovs-vswitchd (Open vSwitch) 3.1.0
	if len(words) == 0 {
		return "", errors.New("ovs-vswitchd does not report its version")
	}
	return words[len(words)-1], nil
}

// Hangs reports whether an ovs-vswitchd runs, but accepts commands without answering: it was stopped, waits for a disk,
// or is in an endless loop. That takes 2 s. One with its control socket elsewhere (--unixctl) cannot be queried, and
// counts as not hanging.
func Hangs(ctx context.Context, runDir string) bool {
	_, err := appctl(ctx, runDir, "version", nil)
	silent := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, unix.EAGAIN) // too many requests are queued
	return silent && ctx.Err() == nil && Running(runDir)
}

func appctl(ctx context.Context, runDir, command string, args []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, appctlTimeout)
	defer cancel()
	socket, err := controlSocket(runDir)
	if err != nil {
		return "", err
	}
	var text string
	err = jsonrpc.Call(ctx, "ovs-vswitchd", socket, command, append([]string{}, args...), &text)
	return text, err
}

func controlSocket(runDir string) (string, error) {
	pid, err := os.ReadFile(pidFile(runDir))
	return filepath.Join(runDir, fmt.Sprintf("ovs-vswitchd.%s.ctl", bytes.TrimSpace(pid))), err
}

// Trace simulates a packet, in the syntax of ovs-fields(7), arriving on the bridge, and returns the output of
// ovs-vswitchd (ovs-vswitchd(8), ofproto/trace), with port names. Package openflow/explain reads it.
func Trace(ctx context.Context, runDir, bridge, packet string) (string, error) {
	text, err := Appctl(ctx, runDir, "ofproto/trace", "--names", bridge, packet)
	if err != nil {
		return "", fmt.Errorf("tracing %s: %w", packet, err)
	}
	return text, nil
}
