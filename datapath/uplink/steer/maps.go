package steer

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
)

// Entry is the address of a local bridged pod. VLAN is 1 to 4094 (IEEE 802.1Q), or 0 for untagged frames.
type Entry struct {
	MAC  api.MAC
	VLAN uint16
}

// Values of macs. A VLAN with a pod has an entry for broadcast; the host's addresses match in any VLAN.
const (
	isPod   uint32 = 1
	isHost  uint32 = 2
	anyVLAN        = 0xffff
)

// most is the maximum number of entries.
const most = 16384

// The map allocates its memory, 1 MiB, when it is created. With BPF_F_NO_PREALLOC a write fails with ENOMEM whenever
// the kernel has not yet refilled its cache of entries, which it does asynchronously: a pod's ADD would fail, and an
// attach be undone, for nothing.
func macsSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: "fl_macs", Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: most}
}

func countSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: "fl_count", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 16, MaxEntries: verdicts}
}

// Sync gives the programs these pods and no others. Call it before the first frame of a new pod can arrive.
func (c Config) Sync(pods []Entry) error {
	m, err := ebpf.LoadPinnedMap(c.pin("macs"), nil)
	if err != nil {
		return fmt.Errorf("opening the map of local pods: %w", err)
	}
	defer m.Close()
	want := map[[8]byte]uint32{}
	for _, e := range pods {
		want[key(e)] = isPod
		want[key(Entry{broadcast(), e.VLAN})] = isPod
	}
	return fill(m, isPod, want)
}

func broadcast() api.MAC { return api.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} }

// hostKeys are the host's own addresses.
func (c Config) hostKeys() map[[8]byte]uint32 {
	want := map[[8]byte]uint32{}
	for _, mac := range c.Hosts {
		want[key(Entry{mac, anyVLAN})] = isHost
	}
	return want
}

// fill makes want all the entries of a kind: it adds new ones, then removes others. In a full map it removes first.
func fill(m *ebpf.Map, kind uint32, want map[[8]byte]uint32) error {
	have, err := entries(m, kind)
	if err != nil {
		return err
	}
	err = put(m, have, want)
	full := errors.Is(err, unix.E2BIG)
	if err != nil && !full {
		return err
	}
	if err = remove(m, have, want); full && err == nil {
		err = put(m, have, want)
	}
	return err
}

// put writes the entries of want that are not in have.
func put(m *ebpf.Map, have, want map[[8]byte]uint32) error {
	for k, v := range want {
		if have[k] == v {
			continue
		}
		if err := m.Put(k, v); err != nil {
			return fmt.Errorf("writing to the map of MAC addresses, which has room for %d: %w", most, err)
		}
	}
	return nil
}

// remove removes the entries of have that are not in want.
func remove(m *ebpf.Map, have, want map[[8]byte]uint32) error {
	for k := range have {
		if _, wanted := want[k]; wanted {
			continue
		}
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("removing from the map of MAC addresses: %w", err)
		}
	}
	return nil
}

func entries(m *ebpf.Map, kind uint32) (map[[8]byte]uint32, error) {
	have := map[[8]byte]uint32{}
	var k [8]byte
	var v uint32
	all := m.Iterate()
	for all.Next(&k, &v) {
		if v == kind {
			have[k] = v
		}
	}
	if err := all.Err(); err != nil {
		return nil, fmt.Errorf("reading the map of MAC addresses: %w", err)
	}
	return have, nil
}

// knowsHosts reports whether the map has the host's addresses.
func (c Config) knowsHosts(m *ebpf.Map) (bool, error) {
	have, err := entries(m, isHost)
	return maps.Equal(have, c.hostKeys()), err
}

// pinned opens the pinned map, or creates and pins it. One with another spec (from another version of the programs) is
// returned as old; openMaps.keep replaces it with the new one.
func (c Config) pinned(name string, spec *ebpf.MapSpec) (m, old *ebpf.Map, err error) {
	old, err = ebpf.LoadPinnedMap(c.pin(name), nil)
	if err == nil && spec.Compatible(old) == nil {
		return old, nil, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("opening the map %s: %w", name, err)
	}
	if m, err = ebpf.NewMap(spec); err != nil {
		return nil, nil, fmt.Errorf("creating the map %s: %w", name, err)
	}
	if old == nil {
		err = m.Pin(c.pin(name))
	}
	if err != nil {
		m.Close()
		return nil, nil, fmt.Errorf("pinning the map %s: %w", name, err)
	}
	return m, old, nil
}

// MACs returns the addresses of the interface and of those that the host has on top of it, such as VLAN interfaces.
func MACs(nic netlink.Link, links []netlink.Link) (list []api.MAC) {
	for _, l := range links {
		a := l.Attrs()
		// The parent of a veth is its other end; that of one with a namespace is another namespace's.
		above := a.ParentIndex == nic.Attrs().Index && a.NetNsID < 0 && l.Type() != "veth"
		if (a.Index == nic.Attrs().Index || above) && len(a.HardwareAddr) == 6 {
			list = append(list, api.MAC(a.HardwareAddr))
		}
	}
	return list
}

func (c Config) pin(name string) string { return filepath.Join(c.Dir, name) }
