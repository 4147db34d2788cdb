package bed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// Bed is a running cluster.
type Bed struct {
	dir  string
	spec spec
	lock *os.File // held while the bed is in use; nil after Open

	clientMu sync.Mutex
	client   *kubernetes.Clientset // created on first use
}

// spec is the options and results of Up, stored in bed.json.
type spec struct {
	Nodes       int
	IPFamily    underlay.IPFamily
	Datapath    vswitch.Datapath
	KubeProxy   string
	Audit       bool
	NoNodeCIDRs bool
	// Kube and Tool are the programs kubeparts and e2e-tool.
	Kube, Tool string
	// Runtime is that of Options. RuntimeDir is the directory of its programs; if empty, they are in PATH.
	Runtime, RuntimeDir string
}

// TestImage is the name of the image that every node has: test/e2e/e2e-tool. Without a command it waits.
const TestImage = "fairlead.test/e2e-tool:1"

// ErrNotUp means that no bed of that name exists.
var ErrNotUp = errors.New("no bed is up")

func dirOf(name string) string {
	if name == "" {
		return dir
	}
	return dir + "-" + name
}

// Open returns the bed of that name, which another process has created.
func Open(name string) (*Bed, error) {
	b := &Bed{dir: dirOf(name)}
	data, err := os.ReadFile(b.path("bed.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s (e2e up creates one)", ErrNotUp, b.dir)
	}
	if err == nil {
		err = json.Unmarshal(data, &b.spec)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the bed in %s: %w", b.dir, err)
	}
	return b, nil
}

func (b *Bed) save() error {
	data, err := json.MarshalIndent(b.spec, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(b.path("bed.json"), append(data, '\n'), 0o644)
}

// claim takes the lock of the bed in dir. It is held until the process ends.
func claim(dir string) (*os.File, error) {
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("the bed in %s is in use by another process: wait for it, or use another name", dir)
	}
	return lock, nil
}

// Down removes the bed of that name, whatever state it is in, and does nothing if there is none. It refuses to remove a
// bed that is in use by another process.
func Down(ctx context.Context, name string) error {
	lock, err := claim(dirOf(name))
	if err != nil {
		return err
	}
	return remove(ctx, dirOf(name), lock)
}

// Down removes the bed: processes, namespaces, cgroups, mounts and files.
func (b *Bed) Down(ctx context.Context) error {
	lock := b.lock
	if lock == nil {
		var err error
		if lock, err = claim(b.dir); err != nil {
			return err
		}
	}
	b.lock = nil
	return remove(ctx, b.dir, lock)
}

// remove also releases the lock.
func remove(ctx context.Context, dir string, lock *os.File) error {
	return errors.Join(host.RemovePlace(ctx, dir), os.Remove(lock.Name()), lock.Close())
}

func (b *Bed) path(name string) string { return filepath.Join(b.dir, name) }

// Nodes are the names of the nodes that the bed was created with, in order.
func (b *Bed) Nodes() []string {
	names := make([]string, b.spec.Nodes)
	for i := range names {
		names[i] = underlay.NodeName(i + 1)
	}
	return names
}

// Datapath is what Open vSwitch can use on the nodes, Netdev or System.
func (b *Bed) Datapath() vswitch.Datapath { return b.spec.Datapath }

// Underlay is the network of the bed: addresses of nodes, VLANs and gateways.
func (b *Bed) Underlay() underlay.Network {
	return underlay.Network{Hosts: b.path("hosts"), Mode: underlay.Bridge, Datapath: b.spec.Datapath,
		Family: b.spec.IPFamily, Subnets: 1}
}

// Host is a node, or one of package underlay: Switch, Router, Outside or ControlPlane. Do runs a function in its mount
// and network namespaces; pods' network namespaces are in /run/netns.
func (b *Bed) Host(name string) host.Host { return host.At(b.path("hosts"), name) }

// node returns a node and its number.
func (b *Bed) node(name string) (host.Host, int, error) {
	for i, n := range b.Nodes() {
		if n == name {
			return b.Host(name), i + 1, nil
		}
	}
	return host.Host{}, 0, fmt.Errorf("the bed has no node %q: its nodes are %v", name, b.Nodes())
}

// Plane is the control plane, whose components can be stopped, stalled and started with other flags.
func (b *Bed) Plane() controlplane.Plane {
	f := b.spec.IPFamily
	p := controlplane.Plane{Host: b.Host(underlay.ControlPlane), Program: b.spec.Kube, ServiceCIDRs: f.ServiceCIDRs(),
		ClusterCIDRs: f.ClusterCIDRs(), Kubelets: b.Nodes(), Audit: b.spec.Audit}
	for _, a := range f.ControlPlaneAddrs() {
		p.Addrs = append(p.Addrs, a.Addr())
	}
	return p
}

// Runtime is the container runtime of the nodes: Containerd, Containerd23 or CRIO.
func (b *Bed) Runtime() string { return b.spec.Runtime }

// AuditLog is the path of the API server's audit log, JSON lines, if Options.Audit is set.
func (b *Bed) AuditLog() string { return b.Plane().AuditLog() }

// Client is a client of the Kubernetes API with the administrator's rights.
func (b *Bed) Client() (*kubernetes.Clientset, error) {
	b.clientMu.Lock()
	defer b.clientMu.Unlock()
	var err error
	if b.client == nil {
		b.client, err = b.Plane().Client()
	}
	return b.client, err
}

// Kubectl runs kubectl as the administrator and returns its standard output. An error contains its standard error. It
// sees the machine's files, except /etc, /opt, /var and /run.
func (b *Bed) Kubectl(ctx context.Context, args ...string) (string, error) {
	return b.Plane().Kubectl(ctx, nil, args...)
}

// KubectlStdin is Kubectl with standard input.
func (b *Bed) KubectlStdin(ctx context.Context, stdin []byte, args ...string) (string, error) {
	return b.Plane().Kubectl(ctx, stdin, args...)
}
