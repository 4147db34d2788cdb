package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/manifest"
	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/objects"
)

// DefaultDir is the default of Options.Dir.
const DefaultDir = "/run/fairlead-lab"

// Uplink is the agents' uplink.mode.
func (l *Lab) Uplink() string { return l.spec.Uplink }

// Cluster is the agents' source of Nodes and Pods.
type Cluster string

// The sources of a lab: a directory of manifests that all nodes share, or a real Kubernetes API server.
const (
	Directory Cluster = "directory"
	Kube      Cluster = "kube"
)

// Lab is a running lab.
type Lab struct {
	dir  string
	spec spec

	clientMu sync.Mutex
	client   *kubernetes.Clientset // created on first use, as is objects
	objects  *objects.Client
}

// spec is the options of Up, stored in lab.json.
type spec struct {
	Created  time.Time
	Nodes    int
	Datapath vswitch.Datapath
	IPFamily underlay.IPFamily
	Mode     underlay.Mode
	Uplink   string
	// Subnets is the number of subnets of the underlay; RoutePods means that its router has routes to the podCIDRs.
	Subnets   int
	RoutePods bool
	BinDir    string
	NoAgent   bool
	NoGuard   bool
	// ProductIntervals hides the environment's intervals from agents.
	ProductIntervals bool
	APIPort          int
	// Cluster and the following fields are those of a lab with a Kubernetes API.
	Cluster   Cluster
	Kube      string // the program kubeparts
	KubeProxy string
}

// ErrNotUp means that there is no lab in the directory.
var ErrNotUp = errors.New("no lab is up")

// Open returns the lab in dir.
func Open(dir string) (*Lab, error) {
	dir, err := host.Absolute(dir)
	if err != nil {
		return nil, err
	}
	l := &Lab{dir: dir}
	data, err := os.ReadFile(l.path("lab.json"))
	if errors.Is(err, os.ErrNotExist) {
		if mounted, _ := host.IsPlace(dir); mounted {
			return nil, fmt.Errorf("the lab in %s is incomplete, or still starting (if it is not: lab down, then lab up)", dir)
		}
		return nil, fmt.Errorf("%w in %s (lab up creates one)", ErrNotUp, dir)
	}
	if err == nil {
		err = json.Unmarshal(data, &l.spec)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the lab in %s: %w", dir, err)
	}
	return l, nil
}

// Dir is the lab's directory.
func (l *Lab) Dir() string { return l.dir }

// Datapath is that of all nodes, never Auto.
func (l *Lab) Datapath() vswitch.Datapath { return l.spec.Datapath }

// Nodes are the names of the nodes, in order.
func (l *Lab) Nodes() []string {
	names := make([]string, l.spec.Nodes)
	for i := range names {
		names[i] = underlay.NodeName(i + 1)
	}
	return names
}

// NodeAddrs are the underlay addresses assigned to node number n, with their masks.
func (l *Lab) NodeAddrs(n int) []netip.Prefix { return l.underlay().NodeAddrs(n) }

// Transport is the device with the nodes' addresses: the NIC, or on the userspace datapath the bridge that has it as a
// port. In mode Bridge it is the bridge to which agents attach the NIC, if they do.
func (l *Lab) Transport() string {
	if l.spec.Mode == underlay.Bridge && l.spec.Uplink == api.UplinkSteer {
		return underlay.NIC
	}
	if l.spec.Mode == underlay.Bridge {
		return underlay.UplinkBridge
	}
	if l.spec.Datapath == vswitch.Netdev {
		return underlay.PhyBridge
	}
	return underlay.NIC
}

// Manifests is the store that all nodes share. With Kubernetes it is empty and unused.
func (l *Lab) Manifests() manifest.Store { return manifest.Open(l.path("manifests"), l.path("tmp")) }

// Records are the pods that the runner has created.
func (l *Lab) Records() sandbox.Records { return sandbox.OpenRecords(l.path("pods")) }

// Host returns a host of the lab: a node, or one of package underlay.
func (l *Lab) Host(name string) (host.Host, error) {
	others := []string{underlay.Outside, underlay.Hub}
	if l.spec.Mode == underlay.Bridge {
		others = []string{underlay.Outside, underlay.Switch, underlay.Router}
	}
	if l.spec.Cluster == Kube {
		others = append(others, underlay.ControlPlane)
	}
	if slices.Contains(l.Nodes(), name) || slices.Contains(others, name) {
		return host.At(l.path("hosts"), name), nil
	}
	return host.Host{}, fmt.Errorf("the lab has no node %q: its nodes are %v, and the hosts %s",
		name, l.Nodes(), strings.Join(others, ", "))
}

// node returns a node and its number.
func (l *Lab) node(name string) (host.Host, int, error) {
	for i, n := range l.Nodes() {
		if n == name {
			return host.At(l.path("hosts"), name), i + 1, nil
		}
	}
	return host.Host{}, 0, fmt.Errorf("the lab has no node %q: its nodes are %v", name, l.Nodes())
}

// underlay is the network of the lab.
func (l *Lab) underlay() underlay.Network {
	s := l.spec
	return underlay.Network{Hosts: l.path("hosts"), Mode: s.Mode, Datapath: s.Datapath, Family: s.IPFamily, Subnets: s.Subnets}
}

func (l *Lab) path(name string) string { return filepath.Join(l.dir, name) }

func (l *Lab) save() error {
	data, err := json.MarshalIndent(l.spec, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(l.path("lab.json"), append(data, '\n'), 0o644)
}
