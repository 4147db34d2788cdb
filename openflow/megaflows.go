package openflow

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

// ForgetMegaflows makes the ovs-vswitchd whose run directory is given throw away what its datapath has cached of flows
// (ovs-vswitchd(8), revalidator/purge). The next packet of each connection asks the flows again.
//
// The userspace datapath of Open vSwitch 3.1.0 was seen to need it where flows vanish under traffic and come back: once
// in twenty times some connection stays dropped for as long as it sends.
func ForgetMegaflows(ctx context.Context, runDir string) error {
	// The purge leaves out what is looked at just then. The wait is refused where there are two datapaths.
	_, _ = control(ctx, runDir, "revalidator/wait")
	if _, err := control(ctx, runDir, "revalidator/purge"); err != nil {
		return fmt.Errorf("asking ovs-vswitchd to forget cached flows: %w", err)
	}
	return nil
}

// Trace returns what ovs-vswitchd says of a packet, in the syntax of ovs-fields(7), that it is to imagine on the bridge
// (ovs-vswitchd(8), ofproto/trace). Ports are named. Package explain reads it.
func Trace(ctx context.Context, runDir, bridge, packet string) (string, error) {
	text, err := control(ctx, runDir, "ofproto/trace", "--names", bridge, packet)
	if err != nil {
		return "", fmt.Errorf("tracing %s: %w", packet, err)
	}
	return text, nil
}

// control does what ovs-appctl(8) does, with the ovs-vswitchd of that run directory: JSON-RPC 1.0.
func control(ctx context.Context, runDir, command string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // it takes milliseconds
	defer cancel()
	pid, err := os.ReadFile(filepath.Join(runDir, "ovs-vswitchd.pid"))
	if err != nil {
		return "", err
	}
	socket := filepath.Join(runDir, fmt.Sprintf("ovs-vswitchd.%s.ctl", bytes.TrimSpace(pid)))
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	request := map[string]any{"id": 0, "method": command, "params": append([]string{}, args...)}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return "", errors.Join(err, ctx.Err())
	}
	var answer struct{ Result, Error any }
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		return "", errors.Join(err, ctx.Err())
	}
	if answer.Error != nil {
		return "", fmt.Errorf("%s: %v", command, answer.Error)
	}
	text, _ := answer.Result.(string)
	return text, nil
}
