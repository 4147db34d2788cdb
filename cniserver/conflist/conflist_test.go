package conflist

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/fairlead-cni/fairlead/cniserver/wire"
)

// debianPlugins are the plugins of the package containernetworking-plugins.
const debianPlugins = "/usr/lib/cni"

var shimPath string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "fairlead-conflist-")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	shimPath = filepath.Join(dir, "shim")
	code := 1
	if out, err := exec.Command("go", "build", "-o", shimPath, "../../cmd/fairlead").CombinedOutput(); err != nil {
		fmt.Printf("building the shim: %v\n%s", err, out)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// node has a node's directories with the shim installed, and plugins that report these versions.
func node(t *testing.T, plugins map[string]string) Config {
	t.Helper()
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	if _, err := (Plugins{bin, filepath.Join(dir, "kept")}).InstallShim(shimPath); err != nil {
		t.Fatal(err)
	}
	for name, versions := range plugins {
		script(t, filepath.Join(bin, name), `echo '{"cniVersion":"1.0.0","supportedVersions":[`+versions+`]}'`)
	}
	return Config{Path: filepath.Join(dir, "net.d", "10-fairlead.conflist"), BinDirs: []string{bin},
		Socket: wire.DefaultSocket, Runtime: "containerd://2.1.4"}
}

func script(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, c Config) (content string, changed bool, warnings []string) {
	t.Helper()
	done, err := Write(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(c.Path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b), done.Changed, done.Warnings
}

const allVersions = `"0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"`

func wantWarnings(t *testing.T, got []string, want ...[]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d warnings, want %d: %q", len(got), len(want), got)
		return
	}
	for i, parts := range want {
		for _, p := range parts {
			if !strings.Contains(got[i], p) {
				t.Errorf("warning %q does not say %q", got[i], p)
			}
		}
	}
}

func wantError(t *testing.T, err error, says string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("error %v, want one containing %q", err, says)
	}
}

func TestWholeList(t *testing.T) {
	c := node(t, map[string]string{"portmap": `"0.1.0",` + allVersions, "bandwidth": allVersions})
	got, changed, warnings := write(t, c)
	want := `{
  "cniVersion": "1.0.0",
  "cniVersions": [
    "0.3.0",
    "0.3.1",
    "0.4.0",
    "1.0.0",
    "1.1.0"
  ],
  "name": "fairlead",
  "plugins": [
    {
      "type": "fairlead"
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    },
    {
      "type": "bandwidth",
      "capabilities": {
        "bandwidth": true
      }
    }
  ]
}
`
	if got != want || !changed {
		t.Errorf("changed %t, got\n%s", changed, got)
	}
	wantWarnings(t, warnings)
	if l := parse(t, c); l.CNIVersion != "1.1.0" {
		t.Errorf("the runtime would use CNI %s", l.CNIVersion)
	}
}

// parse reads the list as a runtime does and checks that the plugins support the version that it chose.
func parse(t *testing.T, c Config) *libcni.NetworkConfigList {
	t.Helper()
	l, err := libcni.NetworkConfFromFile(c.Path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := libcni.NewCNIConfig(c.BinDirs, nil).ValidateNetworkList(t.Context(), l); err != nil {
		t.Errorf("the plugins do not speak CNI %s: %v", l.CNIVersion, err)
	}
	return l
}

// The distribution's plugins. Their versions depend on it: those of Debian 12 end at 1.0.0.
func TestDebianPlugins(t *testing.T) {
	c := node(t, nil)
	c.BinDirs = append(c.BinDirs, debianPlugins)
	theirs, err := versionsOf(t.Context(), "portmap", c.BinDirs)
	if err != nil {
		t.Skipf("SKIPPED, NOTHING WAS TESTED: needs the package containernetworking-plugins: %v", err)
	}
	content, _, warnings := write(t, c)
	l := parse(t, c)
	if len(l.Plugins) != 3 {
		t.Errorf("the list is\n%s", content)
	}
	if slices.Contains(theirs, "1.1.0") {
		wantWarnings(t, warnings)
		return
	}
	newest := theirs[len(theirs)-1]
	if l.CNIVersion != newest || strings.Contains(content, "1.1.0") {
		t.Errorf("the runtime would use CNI %s, portmap speaks %s:\n%s", l.CNIVersion, newest, content)
	}
	wantWarnings(t, warnings, []string{"portmap supports no newer CNI version than " + newest, "the runtime calls no STATUS", "1.6.0"})
}

func TestOldPlugins(t *testing.T) {
	c := node(t, map[string]string{"portmap": `"0.3.0","0.3.1","0.4.0"`, "bandwidth": allVersions})
	content, _, warnings := write(t, c)
	wantWarnings(t, warnings, []string{"portmap supports no newer CNI version than 0.4.0", "the runtime calls no STATUS"})
	if l := parse(t, c); l.CNIVersion != "0.4.0" || len(l.Plugins) != 3 ||
		!strings.Contains(content, `"cniVersion": "0.4.0"`) {
		t.Errorf("the runtime would use CNI %s:\n%s", l.CNIVersion, content)
	}
	// Both below 1.1.0: one warning.
	c = node(t, map[string]string{"portmap": `"0.4.0","1.0.0"`, "bandwidth": `"0.4.0"`})
	_, _, warnings = write(t, c)
	wantWarnings(t, warnings, []string{"portmap supports no newer CNI version than 1.0.0", "the runtime calls no STATUS"}, []string{"bandwidth supports no newer CNI version than 0.4.0"})
	if l := parse(t, c); l.CNIVersion != "0.4.0" {
		t.Errorf("the runtime would use CNI %s", l.CNIVersion)
	}
}

func TestPluginsThatAreLeftOut(t *testing.T) {
	for name, c := range map[string]struct {
		portmap string // empty: missing
		says    []string
	}{
		"missing":        {"", []string{"it is not in "}},
		"fails":          {"echo broken >&2; exit 1", []string{"did not answer VERSION", "broken"}},
		"garbage":        {"echo hello", []string{"invalid answer"}},
		"older than all": {`echo '{"cniVersion":"0.2.0"}'`, []string{"0.1.0, 0.2.0 only"}},
	} {
		t.Run(name, func(t *testing.T) {
			conf := node(t, map[string]string{"bandwidth": allVersions})
			if c.portmap != "" {
				script(t, filepath.Join(conf.BinDirs[0], "portmap"), c.portmap)
			}
			_, _, warnings := write(t, conf)
			wantWarnings(t, warnings, append(c.says, "portmap is not used, so hostPort of pods does not work"))
			if l := parse(t, conf); len(l.Plugins) != 2 || l.CNIVersion != "1.1.0" {
				t.Errorf("%d plugins, CNI %s", len(l.Plugins), l.CNIVersion)
			}
		})
	}
	t.Run("a directory, and nothing else", func(t *testing.T) {
		conf := node(t, nil)
		if err := os.Mkdir(filepath.Join(conf.BinDirs[0], "portmap"), 0o755); err != nil {
			t.Fatal(err)
		}
		_, _, warnings := write(t, conf)
		wantWarnings(t, warnings, []string{"portmap is not used"}, []string{"bandwidth is not used", "annotations"})
		if l := parse(t, conf); len(l.Plugins) != 1 {
			t.Errorf("%d plugins", len(l.Plugins))
		}
	})
}

// A plugin that hangs, and whose child keeps its stdout open, is bounded by the time limit.
func TestPluginHangs(t *testing.T) {
	c := node(t, map[string]string{"bandwidth": allVersions})
	file := filepath.Join(t.TempDir(), "pid")
	script(t, filepath.Join(c.BinDirs[0], "portmap"), "sleep 1000 & echo $! >"+file+"; wait")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // once it hangs
		for data, _ := os.ReadFile(file); len(data) == 0 && ctx.Err() == nil; data, _ = os.ReadFile(file) {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	}()
	_, err := versionsOf(ctx, "portmap", c.BinDirs)
	if err == nil || !strings.Contains(err.Error(), "did not answer VERSION within 5s") {
		t.Error(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		t.Errorf("the plugin's child was waited for: %v", err)
	}
}

// Without the shim every ADD would fail, so no list is written.
func TestShimMissing(t *testing.T) {
	c := node(t, nil)
	c.BinDirs = []string{t.TempDir()}
	_, err := Write(t.Context(), c)
	wantError(t, err, "CNI plugin fairlead: it is not in")
	if _, err := os.Stat(c.Path); err == nil {
		t.Error("the list was written")
	}
}

func TestFirstBinDirCounts(t *testing.T) {
	c := node(t, map[string]string{"portmap": allVersions, "bandwidth": allVersions})
	first := t.TempDir()
	script(t, filepath.Join(first, "portmap"), `echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}'`)
	c.BinDirs = []string{filepath.Join(first, "missing"), first, c.BinDirs[0]}
	write(t, c)
	if l := parse(t, c); l.CNIVersion != "1.0.0" {
		t.Errorf("the runtime would use CNI %s", l.CNIVersion)
	}
}

func TestUnchangedIsNotWritten(t *testing.T) {
	c := node(t, map[string]string{"portmap": allVersions, "bandwidth": allVersions})
	write(t, c)
	before, err := os.Stat(c.Path)
	if err != nil {
		t.Fatal(err)
	}
	if _, changed, _ := write(t, c); changed {
		t.Error("written again")
	}
	if after, err := os.Stat(c.Path); err != nil || !os.SameFile(before, after) || before.ModTime() != after.ModTime() {
		t.Errorf("the file was replaced: %v", err)
	}
	c.Socket = "/run/other.sock"
	content, changed, _ := write(t, c)
	if !changed || !strings.Contains(content, `"cniSocket": "/run/other.sock"`) {
		t.Errorf("changed %t:\n%s", changed, content)
	}
	if info, err := os.Stat(c.Path); err != nil || info.Mode() != 0o644 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// A plugin that was added externally after Fairlead's stays, however the list is formatted. Other changes are reverted.
func TestOthersPlugins(t *testing.T) {
	c := node(t, map[string]string{"portmap": allVersions})
	ours, _, _ := write(t, c)
	var list map[string]any
	if err := json.Unmarshal([]byte(ours), &list); err != nil {
		t.Fatal(err)
	}
	plugins := list["plugins"].([]any)
	mesh := map[string]any{"type": "istio-cni", "kubernetes": map[string]any{"cni_bin_dir": "/opt/cni/bin"}}
	for name, f := range map[string]struct {
		plugins []any
		stays   bool
	}{
		"behind":         {append(slices.Clone(plugins), mesh), true},
		"none":           {plugins, true},
		"before":         {append([]any{mesh}, plugins...), false},
		"one is missing": {plugins[:len(plugins)-1], false},
		"instead of one": {append(slices.Clone(plugins[:len(plugins)-1]), mesh), false},
	} {
		list["plugins"] = f.plugins
		text, err := json.Marshal(list) // in one line, and with the keys in another order
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(c.Path, text, 0o644); err != nil {
			t.Fatal(err)
		}
		got, changed, _ := write(t, c)
		if changed == f.stays || f.stays && got != string(text) || !f.stays && got != ours {
			t.Errorf("%s: changed %t:\n%s", name, changed, got)
		}
	}
}

// The directory has one file that a runtime reads, also after a crash during a write; the leftover is removed.
func TestWhatARuntimeSees(t *testing.T) {
	c := node(t, nil)
	dir := filepath.Dir(c.Path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".10-fairlead.conflist.123.tmp"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, c)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "10-fairlead.conflist" {
		t.Errorf("%v, %v", entries, err)
	}
	for range 2 {
		if err := Remove(c.Path); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(c.Path); err == nil {
		t.Error("the list is still there")
	}
	if err := Remove(filepath.Join(t.TempDir(), "no", "such", "directory")); err != nil {
		t.Error(err)
	}
}

func TestAnotherFileComesFirst(t *testing.T) {
	c := node(t, map[string]string{"portmap": allVersions, "bandwidth": allVersions})
	write(t, c)
	multus := `{"type":"multus-shim","clusterNetwork":"/etc/cni/net.d/10-fairlead.conflist"}`
	for _, f := range []struct {
		name, content string
		warns         bool
	}{{"10-antrea.conflist", "{}", true}, {"00-other.conf", "{}", true}, {"05-x.json", "{}", true},
		{"00-multus.conf", multus, false}, {"10-a.bak", "{}", false}, {"11-later.conflist", "{}", false}} {
		name, warns := f.name, f.warns
		path := filepath.Join(filepath.Dir(c.Path), name)
		if err := os.WriteFile(path, []byte(f.content), 0o644); err != nil {
			t.Fatal(err)
		}
		_, _, warnings := write(t, c)
		if warns {
			wantWarnings(t, warnings, []string{"the runtime uses " + path})
		} else {
			wantWarnings(t, warnings)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWriteFails(t *testing.T) {
	c := node(t, nil)
	if err := os.MkdirAll(filepath.Join(c.Path, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := Write(t.Context(), c)
	wantError(t, err, "writing the CNI network configuration")
	if entries, err := os.ReadDir(filepath.Dir(c.Path)); err != nil || len(entries) != 1 {
		t.Errorf("the failed write left %v, %v", entries, err)
	}
	c.Path = filepath.Join(shimPath, "x")
	_, err = Write(t.Context(), c)
	wantError(t, err, "making the directory")
}

// A runtime that reads or executes continuously never sees a partial file.
func TestReadersSeeWholeFiles(t *testing.T) {
	c := node(t, map[string]string{"portmap": allVersions, "bandwidth": allVersions})
	write(t, c)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := libcni.NetworkConfFromFile(c.Path); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for i := range 20 {
		c.Socket = fmt.Sprint("/run/", strings.Repeat("x", i*100))
		write(t, c)
	}
	close(stop)
	<-done
}
