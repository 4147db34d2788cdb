// Package wire is the protocol between the CNI shim and the agent's CNI server: over a unix stream socket, one Request,
// as one line of JSON, and then one Response, as one line of JSON. The server reads no second request; a caller that
// closes the connection before the response cancels the call.
//
// The package is separate from cniserver because each import costs the shim start-up time, and the runtime executes the
// shim for every call.
package wire

import (
	"encoding/json"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

const (
	// DefaultSocket is where the agent listens unless the network
	// configuration has the key SocketKey.
	DefaultSocket = "/run/fairlead/cni.sock"
	// SocketKey is the key of the network configuration that names another
	// socket.
	SocketKey = "cniSocket"
	// MaxRequest and MaxResponse are the longest lines, in bytes and without
	// the newline. A GC that lists 1000 attachments takes about 200 kB.
	MaxRequest  = 4 << 20
	MaxResponse = 1 << 20
	// ServerDeadline bounds a call in the server, and ClientDeadline the shim's wait. The server's is shorter, by more
	// than the clean-up after a failed ADD may take, so that the runtime gets the server's reason. Both are shorter
	// than the two minutes that the kubelet allows the runtime by default.
	ServerDeadline = 65 * time.Second
	ClientDeadline = 90 * time.Second
)

// Versions are the versions of the CNI spec that Fairlead supports, in order.
func Versions() []string { return []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} }

// LastErrorPath is the file beside socket in which the agent leaves the reason why it does not listen.
func LastErrorPath(socket string) string { return filepath.Join(filepath.Dir(socket), "last-error") }

// Request is what the runtime passed to the shim (CNI spec, section 2).
type Request struct {
	Command     string          `json:"command"` // CNI_COMMAND, without VERSION
	ContainerID string          `json:"containerID,omitempty"`
	Netns       string          `json:"netns,omitempty"`
	IfName      string          `json:"ifName,omitempty"`
	Args        string          `json:"args,omitempty"`
	Path        string          `json:"path,omitempty"`
	Config      json.RawMessage `json:"config"` // stdin
}

// Response is what the shim returns to the runtime: an error, or the result of an ADD in the version that the
// configuration asks for, or nothing.
type Response struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *types.Error    `json:"error,omitempty"`
}
