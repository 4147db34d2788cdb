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
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // it takes milliseconds
	defer cancel()
	pid, err := os.ReadFile(filepath.Join(runDir, "ovs-vswitchd.pid"))
	if err != nil {
		return fmt.Errorf("asking ovs-vswitchd to forget cached flows: %w", err)
	}
	socket := filepath.Join(runDir, fmt.Sprintf("ovs-vswitchd.%s.ctl", bytes.TrimSpace(pid)))
	// The purge leaves out what is looked at just then. The wait is refused where there are two datapaths.
	_ = control(ctx, socket, "revalidator/wait")
	if err := control(ctx, socket, "revalidator/purge"); err != nil {
		return fmt.Errorf("asking ovs-vswitchd at %s to forget cached flows: %w", socket, err)
	}
	return nil
}

// control does what ovs-appctl(8) does: JSON-RPC 1.0.
func control(ctx context.Context, socket, command string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := json.NewEncoder(conn).Encode(map[string]any{"id": 0, "method": command, "params": []string{}}); err != nil {
		return errors.Join(err, ctx.Err())
	}
	var answer struct{ Error any }
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		return errors.Join(err, ctx.Err())
	}
	if answer.Error != nil {
		return fmt.Errorf("%s: %v", command, answer.Error)
	}
	return nil
}
