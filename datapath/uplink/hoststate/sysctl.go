package hoststate

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// Parameters of an interface that decide whether it has IPv6 at all, and how its link-local address is generated
// (ip-sysctl, addr_gen_mode).
const (
	DisableIPv6 = "ipv6/conf/disable_ipv6"
	AddrGenMode = "ipv6/conf/addr_gen_mode"
)

// Values of AddrGenMode: from the MAC, and none.
const (
	GenEUI64 = "0"
	GenNone  = "1"
)

// sysctlDirs are where an interface has parameters of its own.
var sysctlDirs = []string{"ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh"}

// Sysctls reads all readable parameters of the interface.
func Sysctls(name string) (map[string]string, error) {
	values := map[string]string{}
	for _, dir := range sysctlDirs {
		files, err := os.ReadDir(filepath.Join("/proc/sys/net", dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6, or an interface whose MTU is too small for it
		}
		if err != nil {
			return nil, fmt.Errorf("reading the network parameters of %s: %w", name, err)
		}
		for _, f := range files {
			value, err := Sysctl(name, dir+"/"+f.Name())
			if err == nil { // stable_secret can't be read while it is not set
				values[dir+"/"+f.Name()] = value
			}
		}
	}
	return values, nil
}

// Sysctl reads one parameter of the interface, named as in Link.
func Sysctl(name, parameter string) (string, error) {
	dir, file := filepath.Split(parameter)
	return kernel.Sysctl(dir, name, file)
}

// LeastMTU is IPv6's minimum MTU (RFC 8200). The kernel has no IPv6 on an interface with a smaller MTU.
const LeastMTU = 1280

// Supports reports whether such an object can be on the interface.
func (p Iface) Supports(o Object) bool { return !o.IsIPv6() || kernel.HasIPv6On(p.Name) }

// SetSysctl sets one parameter of the interface, if it differs. Without IPv6 its parameters do not exist, and nothing
// is set.
func SetSysctl(name, parameter, value string) error {
	if strings.HasPrefix(parameter, "ipv6/conf") && !kernel.HasIPv6On(name) {
		return nil
	}
	dir, file := filepath.Split(parameter)
	_, err := kernel.SetSysctl(value, dir, name, file)
	return err
}

// CopySysctls sets the parameters of interface name, except those that control its IPv6 addresses. A parameter that
// this interface does not have or that cannot be set (mc_forwarding, for example) is left out.
func CopySysctls(name string, values map[string]string) {
	for _, parameter := range slices.Sorted(maps.Keys(values)) {
		switch {
		case parameter == DisableIPv6, parameter == AddrGenMode, strings.HasSuffix(parameter, "/stable_secret"):
		default:
			_ = SetSysctl(name, parameter, values[parameter])
		}
	}
}

// KeepNeighbours has the kernel keep the neighbours of interface name when it loses its carrier, as br-uplink does on
// the userspace datapath whenever ovs-vswitchd ends. Otherwise the kernel probes them while no answer can arrive, and
// retries only a second later. Kernels before 5.16 do not have these parameters.
func KeepNeighbours(name string) {
	_ = SetSysctl(name, "ipv4/conf/arp_evict_nocarrier", "0")
	_ = SetSysctl(name, "ipv6/conf/ndisc_evict_nocarrier", "0")
}
