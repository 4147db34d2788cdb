package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// Default paths of a container runtime, on the node.
const (
	confDir   = "/etc/cni/net.d"
	pluginDir = "/opt/cni/bin"
	ifName    = "eth0"
)

// ErrNoNetwork is a runtime's error without a CNI configuration: "cni plugin not initialized".
var ErrNoNetwork = errors.New("no CNI configuration in " + confDir + " of the node: is its agent ready?")

// CNI calls the plugins of one node. The plugins are found and started on the node, with the node's files.
type CNI struct{ Node host.Host }

// call runs f with libcni and the node's network on the node.
func (c CNI) call(f func(*libcni.CNIConfig, *libcni.NetworkConfigList) error) error {
	return c.Node.Do(func() error {
		list, err := network()
		if err != nil {
			return err
		}
		return f(libcni.NewCNIConfig([]string{pluginDir}, nil), list)
	})
}

// Configured returns an error if the node has no usable CNI configuration.
func (c CNI) Configured() error {
	return c.Node.Do(func() error {
		_, err := network()
		return err
	})
}

// network is the first usable configuration by name, as in containerd and CRI-O.
func network() (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(confDir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return nil, fmt.Errorf("looking for CNI configurations: %w", err)
	}
	slices.Sort(files)
	refused := ErrNoNetwork
	for _, file := range files {
		list, err := libcni.NetworkConfFromFile(file)
		if err == nil && len(list.Plugins) > 0 {
			return list, nil
		}
		refused = fmt.Errorf("%w (%s is not usable: %v)", ErrNoNetwork, file, err)
	}
	return nil, refused
}

// Add calls ADD for the sandbox and returns the result of the chain.
func (c CNI) Add(ctx context.Context, r *Record) (types.Result, error) {
	var result types.Result
	err := c.call(func(cni *libcni.CNIConfig, list *libcni.NetworkConfigList) (err error) {
		result, err = cni.AddNetworkList(ctx, list, runtimeConf(r))
		return err
	})
	return result, err
}

// Del calls DEL for the sandbox.
func (c CNI) Del(ctx context.Context, r *Record) error {
	return c.call(func(cni *libcni.CNIConfig, list *libcni.NetworkConfigList) error {
		return cni.DelNetworkList(ctx, list, runtimeConf(r))
	})
}

// Check calls CHECK for the sandbox, with the cached result of its ADD.
func (c CNI) Check(ctx context.Context, r *Record) error {
	conf := runtimeConf(r)
	if _, limited := r.Capabilities["bandwidth"]; !limited {
		// The bandwidth plugin before 1.9.1 crashes at a CHECK without limits
		// (containernetworking/plugins issue 1221).
		conf.CapabilityArgs = maps.Clone(r.Capabilities)
		if conf.CapabilityArgs == nil {
			conf.CapabilityArgs = map[string]any{}
		}
		conf.CapabilityArgs["bandwidth"] = bandwidth{}
	}
	return c.call(func(cni *libcni.CNIConfig, list *libcni.NetworkConfigList) error {
		return cni.CheckNetworkList(ctx, list, conf)
	})
}

// Status calls STATUS. In a network of a CNI version without it, where libcni calls no plugin, only the first plugin is
// called.
func (c CNI) Status(ctx context.Context) error {
	return c.call(func(cni *libcni.CNIConfig, list *libcni.NetworkConfigList) error {
		list, err := withGCAndStatus(list)
		if err != nil {
			return err
		}
		return cni.GetStatusNetworkList(ctx, list)
	})
}

// withGCAndStatus returns the list if its CNI version has GC and STATUS, which were added in 1.1.0, and otherwise a
// list of that version with the first plugin only: the others may not support it.
func withGCAndStatus(list *libcni.NetworkConfigList) (*libcni.NetworkConfigList, error) {
	const since = "1.1.0"
	if has, err := version.GreaterThanOrEqualTo(list.CNIVersion, since); err != nil || has {
		return list, err
	}
	alone, err := json.Marshal(map[string]any{"cniVersion": since, "name": list.Name,
		"plugins": []json.RawMessage{list.Plugins[0].Bytes}})
	if err != nil {
		return nil, err
	}
	return libcni.ConfListFromBytes(alone)
}

// GC calls GC with the attachments of these sandboxes as the valid ones. In a network of a CNI version without GC,
// where libcni calls DEL for those in its cache, the first plugin's GC is called as well.
func (c CNI) GC(ctx context.Context, valid []*Record) error {
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, r := range valid {
		args.ValidAttachments = append(args.ValidAttachments,
			types.GCAttachment{ContainerID: r.ContainerID, IfName: ifName})
	}
	return c.call(func(cni *libcni.CNIConfig, list *libcni.NetworkConfigList) error {
		newer, err := withGCAndStatus(list)
		if err != nil {
			return err
		}
		if err := cni.GCNetworkList(ctx, list, args); err != nil || newer == list {
			return err
		}
		return cni.GCNetworkList(ctx, newer, args)
	})
}

func runtimeConf(r *Record) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: r.ContainerID,
		NetNS:       r.Netns,
		IfName:      ifName,
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", r.Namespace},
			{"K8S_POD_NAME", r.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", r.ContainerID},
			{"K8S_POD_UID", r.UID},
		},
		CapabilityArgs: r.Capabilities,
	}
}

// addresses are those of the pod's interface in a result.
func addresses(result types.Result) ([]string, error) {
	r, err := types100.NewResultFromResult(result)
	if err != nil {
		return nil, fmt.Errorf("reading the result of ADD: %w", err)
	}
	var ips []string
	for _, ip := range r.IPs {
		ips = append(ips, ip.Address.IP.String())
	}
	if len(ips) == 0 {
		return nil, errors.New("the result of ADD has no address")
	}
	return ips, nil
}

// Printed is the form in which libcni's answer is shown: the JSON that a plugin would print.
func Printed(result types.Result, err error) string {
	if err != nil {
		var cniErr *types.Error
		if !errors.As(err, &cniErr) {
			return err.Error() + "\n"
		}
		data, _ := json.MarshalIndent(cniErr, "", "    ")
		return string(data) + "\n"
	}
	if result == nil {
		return ""
	}
	data, err := json.MarshalIndent(result, "", "    ")
	if err != nil {
		return err.Error() + "\n"
	}
	return string(data) + "\n"
}
