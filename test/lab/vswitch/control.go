package vswitch

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// Control is a connection to ovs-vswitchd's control socket, as used by ovs-appctl(8): JSON-RPC 1.0.
type Control struct {
	net.Conn
	answers *json.Decoder
}

// Dial connects to the ovs-vswitchd whose PID file is on the host. It connects on the host, where the socket's path is
// within the limit of 108 bytes (unix(7)).
func Dial(ctx context.Context, h host.Host) (Control, error) {
	pid, err := os.ReadFile(h.Private("/run/openvswitch/ovs-vswitchd.pid"))
	if err != nil {
		return Control{}, fmt.Errorf("connecting to ovs-vswitchd: %w", err)
	}
	socket := fmt.Sprintf("/run/openvswitch/ovs-vswitchd.%s.ctl", strings.TrimSpace(string(pid)))
	var conn net.Conn
	err = h.Do(func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, "unix", socket)
		return err
	})
	if err != nil {
		return Control{}, fmt.Errorf("connecting to ovs-vswitchd: %w", err)
	}
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return Control{}, err
	}
	return Control{conn, json.NewDecoder(conn)}, nil
}

// Call runs a command of ovs-vswitchd(8), RUNTIME MANAGEMENT COMMANDS. Its output is dropped.
func (c Control) Call(command string, args ...string) error {
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
