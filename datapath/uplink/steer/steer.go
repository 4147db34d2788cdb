package steer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
)

// BPFFS is where every node mounts the file system of type bpf.
const BPFFS = "/sys/fs/bpf"

// Hooks are the kernel's kinds of tc hooks.
type Hooks string

// The kinds. Any is tcx where the kernel has it, else clsact.
const (
	Any    Hooks = ""
	TCX    Hooks = "tcx"
	Clsact Hooks = "clsact"
)

// Config says which NIC to share with which port.
type Config struct {
	// Dir contains the pins. It is created, and removed with all its content.
	Dir string
	// NIC and Port are the devices' interface indexes; 0: the device is gone.
	NIC, Port int
	// Hosts are the host's own addresses behind the NIC.
	Hosts []api.MAC
	Hooks Hooks
}

// State is the observed state.
type State struct {
	// Complete: all programs of this version are attached, and have the host's addresses.
	Complete bool
	// Left: something of Fairlead's exists.
	Left bool
}

// Ensure attaches the programs, or replaces those that are not as wanted. Frames keep flowing meanwhile.
func (c Config) Ensure() error {
	if err := c.makeDir(); err != nil {
		return err
	}
	m, err := c.openMaps()
	if err != nil {
		return err
	}
	defer m.close()
	if err := fill(m.macs, isHost, c.hostKeys()); err != nil {
		return err
	}
	for _, h := range hooks() {
		if err := c.ensure(h, m); err != nil {
			return fmt.Errorf("attaching a program at %s: %w", h.name, err)
		}
		if err := c.detachUnpinned(h); err != nil { // otherwise each broadcast would be duplicated
			return err
		}
	}
	return m.keep(c)
}

func (c Config) ensure(h hook, m *openMaps) error {
	spec := c.plan(m).spec(h)
	if ok, err := c.attached(h, spec, m); ok || err != nil {
		return err
	}
	program, err := load(spec)
	if err != nil {
		return err
	}
	defer program.Close()
	if c.Hooks != Clsact {
		err = c.attachTCX(h, program)
		if err == nil || c.Hooks == TCX || !errors.Is(err, ebpf.ErrNotSupported) {
			return err
		}
	}
	return c.attachFilter(h, program)
}

// attached reports whether the program of a hook is the one in spec, on the right device and with these maps.
func (c Config) attached(h hook, spec *ebpf.ProgramSpec, m *openMaps) (bool, error) {
	id, err := c.attachedTCX(h)
	if err == nil && id == 0 {
		id, err = c.attachedFilter(h)
	}
	if id == 0 || err != nil {
		return false, err
	}
	program, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("querying the program at %s: %w", h.name, err)
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return false, fmt.Errorf("querying the program at %s: %w", h.name, err)
	}
	uses, _ := info.MapIDs()
	return info.Name == spec.Name && m.are(uses), nil
}

// State observes, and changes nothing.
func (c Config) State() (s State, err error) {
	_, err = os.Stat(c.Dir)
	s.Left = err == nil
	filters, err := c.filters()
	if err != nil {
		return s, err
	}
	stray := false
	for _, h := range hooks() {
		all, err := c.unpinned(h)
		if err != nil {
			return s, err
		}
		stray = stray || len(all) > 0
	}
	s.Left = s.Left || len(filters) > 0 || stray
	m, err := c.existingMaps()
	if m == nil || err != nil {
		return s, err
	}
	defer m.close()
	if !stray {
		s.Complete, err = c.complete(m)
	}
	return s, err
}

// complete reports whether the programs are attached, and have the host's addresses.
func (c Config) complete(m *openMaps) (bool, error) {
	ok, err := c.knowsHosts(m.macs)
	for _, h := range hooks() {
		if !ok || err != nil {
			return false, err
		}
		ok, err = c.attached(h, c.plan(m).spec(h), m)
	}
	return ok && err == nil, err
}

// Remove removes everything of Fairlead's. What is missing is not an error.
func (c Config) Remove() error {
	list := hooks()
	slices.Reverse(list)
	var errs []error
	for _, h := range list {
		errs = append(errs, c.detachTCX(h), c.detachFilter(h))
	}
	err := c.removeQdiscs() // which are recorded in the directory
	if err == nil {
		err = os.RemoveAll(c.Dir)
	}
	if err != nil {
		errs = append(errs, fmt.Errorf("removing pinned objects: %w", err))
	}
	for _, h := range list {
		errs = append(errs, c.detachUnpinned(h))
	}
	return errors.Join(errs...)
}

// Probe returns nil if the kernel accepts the programs and they can be pinned. It attaches nothing.
func Probe(dir string) error {
	if err := haveBPFFS(dir); err != nil {
		return err
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("raising the limit of locked memory: %w", err)
	}
	m := &openMaps{}
	defer m.close()
	var err error
	for _, part := range m.parts() {
		if *part.at, err = ebpf.NewMap(part.spec); err != nil {
			return fmt.Errorf("creating an eBPF map: %w", err)
		}
	}
	for _, h := range hooks() {
		program, err := load(Config{NIC: 1, Port: 1}.plan(m).spec(h))
		if err != nil {
			return err
		}
		program.Close()
	}
	return nil
}

func (c Config) plan(m *openMaps) plan {
	return plan{nic: c.NIC, port: c.Port, macs: m.macs.FD(), count: m.count.FD()}
}

// load loads a program into the kernel. The verifier log is part of the error.
func load(spec *ebpf.ProgramSpec) (*ebpf.Program, error) {
	program, err := ebpf.NewProgram(spec)
	if refused := (*ebpf.VerifierError)(nil); errors.As(err, &refused) {
		return nil, fmt.Errorf("the kernel rejects the program %s: %w. Verifier log: %s", spec.Name, refused.Cause,
			strings.Join(refused.Log, " | "))
	}
	if err != nil {
		return nil, fmt.Errorf("the kernel rejects the program %s: %w", spec.Name, err)
	}
	return program, nil
}

func (c Config) makeDir() error {
	if err := haveBPFFS(c.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return fmt.Errorf("creating the directory of pinned objects: %w", err)
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("raising the limit of locked memory: %w", err)
	}
	return nil
}

// haveBPFFS mounts the file system for dir if the node has not.
func haveBPFFS(dir string) error {
	at := filepath.Dir(dir)
	var s unix.Statfs_t
	err := unix.Statfs(at, &s)
	if err == nil && s.Type == unix.BPF_FS_MAGIC {
		return nil
	}
	if at == BPFFS {
		if err = unix.Mount("bpf", BPFFS, "bpf", 0, "mode=0700"); err == nil {
			return nil
		}
	}
	if err == nil {
		err = errors.New("another file system is mounted there")
	}
	return fmt.Errorf("%s is not a file system of type bpf: mount one (mount -t bpf bpf %s): %w", at, at, err)
}

// openMaps are the maps that the programs use.
type openMaps struct {
	macs, count *ebpf.Map
	fresh       []part // not pinned yet
}

// part is one of the maps: its pin name, its spec, and where it is kept while it is open.
type part struct {
	name string
	spec *ebpf.MapSpec
	at   **ebpf.Map
}

func (m *openMaps) parts() []part {
	return []part{{"macs", macsSpec(), &m.macs}, {"count", countSpec(), &m.count}}
}

// openMaps opens the pinned maps, and creates missing ones. A new map is pinned at once, unless it replaces one: that
// is removed when no program uses it any more.
func (c Config) openMaps() (_ *openMaps, err error) {
	m := &openMaps{}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	for _, part := range m.parts() {
		now, old, err := c.pinned(part.name, part.spec)
		if err != nil {
			return nil, err
		}
		*part.at = now
		if old != nil {
			if err := copyEntries(now, old); err != nil {
				return nil, err
			}
			m.fresh = append(m.fresh, part)
		}
	}
	return m, nil
}

func (m *openMaps) close() {
	for _, part := range m.parts() {
		if *part.at != nil {
			(*part.at).Close()
		}
	}
}

// keep pins the maps that replace others.
func (m *openMaps) keep(c Config) error {
	for _, part := range m.fresh {
		fresh := c.pin(part.name + "_new") // the file system refuses names with dots
		err := os.Remove(fresh)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = (*part.at).Pin(fresh)
		}
		if err == nil {
			err = os.Rename(fresh, c.pin(part.name))
		}
		if err != nil {
			return fmt.Errorf("pinning the map %s: %w", part.name, err)
		}
	}
	return nil
}

// are reports whether a program that uses maps with these IDs uses m's.
func (m *openMaps) are(ids []ebpf.MapID) bool {
	for _, part := range m.parts() {
		info, err := (*part.at).Info()
		if err != nil {
			return false
		}
		if id, ok := info.ID(); !ok || !slices.Contains(ids, id) {
			return false
		}
	}
	return len(ids) == 2
}

// existingMaps returns the pinned maps; nil if one is missing, or has another spec.
func (c Config) existingMaps() (*openMaps, error) {
	m := &openMaps{}
	for _, part := range m.parts() {
		now, err := ebpf.LoadPinnedMap(c.pin(part.name), nil)
		if err == nil {
			*part.at = now
			err = part.spec.Compatible(now)
		}
		if err == nil {
			continue
		}
		m.close()
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ebpf.ErrMapIncompatible) {
			return nil, nil
		}
		return nil, fmt.Errorf("opening the map %s: %w", part.name, err)
	}
	return m, nil
}

// copyEntries adds the entries of old, if they are of the same kind, and closes it.
func copyEntries(now, old *ebpf.Map) error {
	defer old.Close()
	if old.KeySize() != now.KeySize() || old.ValueSize() != now.ValueSize() || now.Type() != ebpf.Hash {
		return nil // the agent fills it; counters start at 0
	}
	have, err := entries(old, isPod)
	if err != nil {
		return err
	}
	return fill(now, isPod, have)
}
