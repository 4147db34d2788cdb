package inputs

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/internal/atomicfile"
)

// LastKnownPath is where a node keeps the API server's last known objects.
const LastKnownPath = "/var/lib/fairlead/last-inputs.json"

// lastKnown is the file of the API server's last known objects, read only by an agent that starts while the server is
// unreachable.
type lastKnown struct {
	path, node string
}

// content is the content of the file.
type content struct {
	Node            string // the node of the agent that wrote it
	Nodes           map[string]Node
	Pods            map[string]Pod
	Namespaces      map[string]Namespace
	IPPools         map[string]api.IPPool
	NetworkPolicies map[string]NetworkPolicy
}

// read returns the content of the file and when it was written.
func (f lastKnown) read() (*Snapshot, time.Time, error) {
	data, err := os.ReadFile(f.path)
	if err != nil {
		return nil, time.Time{}, err
	}
	var c content
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, time.Time{}, fmt.Errorf("%s: %w", f.path, err)
	}
	if c.Node != f.node {
		return nil, time.Time{}, fmt.Errorf("%s belongs to node %q, and this is %q", f.path, c.Node, f.node)
	}
	info, err := os.Stat(f.path)
	if err != nil {
		return nil, time.Time{}, err
	}
	return &Snapshot{Nodes: c.Nodes, Pods: c.Pods, Namespaces: c.Namespaces, IPPools: c.IPPools,
		NetworkPolicies: c.NetworkPolicies}, info.ModTime(), nil
}

// write replaces the file atomically. A snapshot without any Node is not written: its input was lost.
func (f lastKnown) write(s *Snapshot) error {
	if len(s.Nodes) == 0 {
		return nil
	}
	data, err := json.Marshal(content{f.node, s.Nodes, s.Pods, s.Namespaces, s.IPPools, s.NetworkPolicies})
	if err != nil {
		return err
	}
	return atomicfile.Write(f.path, data, 0o600)
}
