// Package conflist configures the container runtime for Fairlead: it installs the CNI plugin and writes the network
// configuration list. It recognises both by their paths. A file that the runtime may be reading is never changed in
// place.
package conflist

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/cniserver/wire"
	"github.com/fairlead-cni/fairlead/internal/atomicfile"
)

const (
	// DefaultPath is where container runtimes look for network configurations.
	DefaultPath = "/etc/cni/net.d/10-fairlead.conflist"
	// DefaultBinDir is where container runtimes look for plugins.
	DefaultBinDir = "/opt/cni/bin"
	// NetworkName is the name of the network in the list.
	NetworkName = "fairlead"
)

// Config is the input of Write.
type Config struct {
	// Path is the file to write.
	Path string
	// BinDirs are the directories in which the runtime looks for plugins, in
	// its order.
	BinDirs []string
	// Socket is the path that the agent listens on.
	Socket string
	// Runtime is the container runtime, as in a Node's status.nodeInfo.containerRuntimeVersion: "containerd://2.1.4".
	// Empty: unknown.
	Runtime string
}

// list is a network configuration list (CNI spec, section 1).
type list struct {
	// CNIVersion is for runtimes without support for CNIVersions, a key that was added in CNI 1.1.0: libcni reads the
	// keys it supports and ignores others. Without 1.1.0 that key is omitted.
	CNIVersion  string   `json:"cniVersion"`
	CNIVersions []string `json:"cniVersions,omitempty"`
	Name        string   `json:"name"`
	Plugins     []plugin `json:"plugins"`
}

type plugin struct {
	Type         string          `json:"type"`
	Socket       string          `json:"cniSocket,omitempty"`
	Capabilities map[string]bool `json:"capabilities,omitempty"`
}

// Written is what Write has done.
type Written struct {
	Changed bool
	// Warnings are messages for the operator about what will not work because of the node's plugins.
	Warnings []string
	// Slow: a plugin did not answer in time, so the list is without it. On a busy node it may answer later.
	Slow bool
	// Beaten says that the runtime uses another network. It is one of the warnings.
	Beaten error
}

// Write writes the list unless the existing one is as it should be. Besides Fairlead, the list has the plugins portmap
// and bandwidth, each if it is found and works, and all versions of the spec that every plugin in it and the runtime
// support. Plugins that were added after these, as by service meshes, are kept.
func Write(ctx context.Context, c Config) (Written, error) {
	l, out, err := choose(ctx, c)
	if err != nil {
		return Written{}, err
	}
	content, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return Written{}, fmt.Errorf("encoding the CNI network configuration: %w", err)
	}
	content = append(content, '\n')
	if err := os.MkdirAll(filepath.Dir(c.Path), 0o755); err != nil {
		return Written{}, fmt.Errorf("making the directory of the CNI network configuration: %w", err)
	}
	if out.Beaten = checkFirst(c.Path); out.Beaten != nil {
		out.Warnings = append(out.Warnings, out.Beaten.Error())
	}
	if there, err := os.ReadFile(c.Path); err == nil && begins(there, content) {
		return out, nil
	}
	if err := atomicfile.Write(c.Path, content, 0o644); err != nil {
		return Written{}, fmt.Errorf("writing the CNI network configuration: %w", err)
	}
	out.Changed = true
	return out, nil
}

// begins reports whether the list there equals want, except for its form and plugins appended to it.
func begins(there, want []byte) bool {
	var got, all map[string]any
	if json.Unmarshal(there, &got) != nil || json.Unmarshal(want, &all) != nil {
		return false
	}
	plugins, _ := got["plugins"].([]any)
	if ours, _ := all["plugins"].([]any); len(plugins) > len(ours) {
		got["plugins"] = plugins[:len(ours)]
	}
	return reflect.DeepEqual(got, all)
}

// Stamp changes when a file that Write reads changes: the list, the files beside it, the plugins. It runs no plugin.
func Stamp(c Config) string {
	files := []string{filepath.Dir(c.Path), c.Path}
	for _, dir := range c.BinDirs {
		for _, name := range []string{"fairlead", "portmap", "bandwidth"} {
			files = append(files, filepath.Join(dir, name))
		}
	}
	var stamp strings.Builder
	for _, f := range files {
		if info, err := os.Stat(f); err == nil {
			fmt.Fprintln(&stamp, f, info.Size(), info.Mode(), info.ModTime().UnixNano())
		}
	}
	return stamp.String()
}

// Remove removes the list, so that the runtime reports the node as not ready. It succeeds if there is none.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the CNI network configuration: %w", err)
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// choose checks the plugins and returns the list.
func choose(ctx context.Context, c Config) (l list, out Written, err error) {
	main := plugin{Type: "fairlead"}
	if c.Socket != wire.DefaultSocket {
		main.Socket = c.Socket
	}
	versions, err := versionsOf(ctx, main.Type, c.BinDirs)
	if err != nil {
		return list{}, Written{}, fmt.Errorf("CNI plugin fairlead: %w", err)
	}
	versions = knownBy(c.Runtime, versions)
	l = list{Name: NetworkName, Plugins: []plugin{main}}
	for _, chained := range []struct {
		plugin
		loss string
	}{
		{plugin{Type: "portmap", Capabilities: map[string]bool{"portMappings": true}}, "hostPort of pods does not work"},
		{plugin{Type: "bandwidth", Capabilities: map[string]bool{"bandwidth": true}},
			"the bandwidth annotations of pods are ignored"},
	} {
		theirs, err := versionsOf(ctx, chained.Type, c.BinDirs)
		common := intersect(versions, theirs)
		if err == nil && len(common) == 0 {
			err = fmt.Errorf("it supports CNI %s only", strings.Join(theirs, ", "))
		}
		if err != nil {
			out.Slow = out.Slow || errors.Is(err, errSlow)
			out.Warnings = append(out.Warnings, fmt.Sprintf("CNI plugin %s is not used, so %s: %v", chained.Type, chained.loss, err))
			continue
		}
		if newest := versions[len(versions)-1]; common[len(common)-1] != newest {
			out.Warnings = append(out.Warnings, belowNewest(chained.Type, common[len(common)-1], newest))
		}
		versions = common
		l.Plugins = append(l.Plugins, chained.plugin)
	}
	l.CNIVersion = versions[len(versions)-1]
	if newerThanSafe(l.CNIVersion) {
		l.CNIVersions = versions
	}
	if slices.Contains(versions, safe) {
		l.CNIVersion = safe
	}
	return l, out, nil
}

func belowNewest(name, theirs, newest string) string {
	w := fmt.Sprintf("CNI plugin %s supports no newer CNI version than %s, so the network does not use %s", name, theirs, newest)
	if newest == "1.1.0" {
		w += ": the runtime calls no STATUS, and CRI-O no GC. Install the CNI plugins 1.6.0 or newer"
	}
	return w
}

// intersect returns the elements of a that are in b.
func intersect(a, b []string) []string {
	var both []string
	for _, v := range a {
		if slices.Contains(b, v) {
			both = append(both, v)
		}
	}
	return both
}

// checkFirst returns an error if the runtime will use another file than path: it uses the first by name.
func checkFirst(path string) error {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil
	}
	for _, e := range entries { // sorted by name
		name := e.Name()
		if name >= filepath.Base(path) {
			return nil
		}
		other := filepath.Join(filepath.Dir(path), name)
		if slices.Contains([]string{".conflist", ".conf", ".json"}, filepath.Ext(name)) && !callsFairlead(other) {
			return fmt.Errorf("the runtime uses %s instead of %s: it takes the first file by name. Remove it, unless it calls Fairlead", other, filepath.Base(path))
		}
	}
	return nil
}

// callsFairlead reports whether that network configuration calls Fairlead, itself or through Multus.
func callsFairlead(path string) bool {
	content, err := os.ReadFile(path)
	return err == nil && (bytes.Contains(content, []byte("fairlead")) || bytes.Contains(content, []byte("multus")))
}
