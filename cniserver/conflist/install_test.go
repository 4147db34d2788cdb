package conflist

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestInstallShim(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "opt", "bin")
	plugins := Plugins{bin, filepath.Join(t.TempDir(), "kept")}
	install := func(want bool) {
		t.Helper()
		if changed, err := plugins.InstallShim(shimPath); err != nil || changed != want {
			t.Fatalf("changed %t, want %t, %v", changed, want, err)
		}
		for _, name := range []string{"fairlead", "antrea"} {
			out, err := exec.Command("cmp", shimPath, filepath.Join(bin, name)).CombinedOutput()
			info, serr := os.Stat(filepath.Join(bin, name))
			if err != nil || serr != nil || info.Mode() != 0o755 {
				t.Errorf("%s: %v %s, %v", name, err, out, serr)
			}
		}
		if entries, _ := os.ReadDir(bin); len(entries) != 2 {
			t.Errorf("%v", entries)
		}
	}
	install(true)
	install(false)
	// While a runtime executes the old one, which therefore cannot be written to.
	running := exec.Command(filepath.Join(bin, "fairlead"))
	running.Env = []string{"CNI_COMMAND=STATUS", "CNI_PATH=/"}
	stdin, err := running.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	script(t, filepath.Join(bin, "antrea"), "echo of another make")
	if err := os.Chmod(filepath.Join(bin, "fairlead"), 0o700); err != nil {
		t.Fatal(err)
	}
	install(true)
	stdin.Close()
	running.Wait() // it fails: no agent
	// A link to another file is replaced, not written through.
	elsewhere := filepath.Join(t.TempDir(), "precious")
	script(t, elsewhere, "echo precious")
	for _, name := range []string{"fairlead", "antrea"} {
		path := filepath.Join(bin, name)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(elsewhere, path); err != nil {
			t.Fatal(err)
		}
	}
	install(true)
	if b, err := os.ReadFile(elsewhere); err != nil || !strings.Contains(string(b), "precious") {
		t.Errorf("written through a link: %v", err)
	}
	_, err = plugins.InstallShim(filepath.Join(bin, "missing"))
	wantError(t, err, "installing the CNI plugin")
}

// speaking creates a plugin that reports these versions.
func speaking(t *testing.T, dir, name, versions string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script(t, filepath.Join(dir, name), `echo '{"cniVersion":"1.0.0","supportedVersions":[`+versions+`]}'`)
}

// tree lists a directory: names, modes, targets of links, and the content of files.
func tree(t *testing.T, dir string) (lines []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		target, _ := os.Readlink(path)
		content, _ := readProgram(path)
		lines = append(lines, strings.Join([]string{e.Name(), info.Mode().String(), target, content.digest}, " "))
	}
	return lines
}

// What install-cni and the agent change in a runtime's directory is undone by uninstall.
func TestPluginsComeAndGo(t *testing.T) {
	image, elsewhere := t.TempDir(), t.TempDir()
	speaking(t, image, "portmap", allVersions)
	speaking(t, image, "bandwidth", allVersions)
	speaking(t, elsewhere, "old", `"0.4.0","1.0.0"`)
	for name, c := range map[string]struct {
		before   func(bin string)
		replaces []string // of portmap and bandwidth
	}{
		"nothing there": {func(string) {}, []string{"portmap", "bandwidth"}},
		"an empty file": {func(bin string) { speaking(t, bin, "portmap", ""); _ = os.Truncate(filepath.Join(bin, "portmap"), 0) },
			[]string{"portmap", "bandwidth"}},
		"old and new": {func(bin string) {
			speaking(t, bin, "portmap", `"0.4.0","1.0.0"`)
			speaking(t, bin, "bandwidth", allVersions+`,"1.2.0"`)
			speaking(t, bin, "antrea", `"0.4.0"`)
			speaking(t, bin, "bridge", `"0.4.0"`)
		}, []string{"portmap"}},
		"links": {func(bin string) {
			for _, name := range []string{"portmap", "antrea"} {
				if err := os.Symlink(filepath.Join(elsewhere, "old"), filepath.Join(bin, name)); err != nil {
					t.Fatal(err)
				}
			}
		}, []string{"portmap", "bandwidth"}},
		"not for everybody": {func(bin string) {
			speaking(t, bin, "portmap", `"0.4.0"`)
			if err := os.Chmod(filepath.Join(bin, "portmap"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, []string{"portmap", "bandwidth"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := Plugins{t.TempDir(), filepath.Join(t.TempDir(), "kept")}
			c.before(p.BinDir)
			before := tree(t, p.BinDir)
			install := func(want int) {
				t.Helper()
				if _, err := p.InstallShim(shimPath); err != nil {
					t.Fatal(err)
				}
				if did, err := p.InstallChained(t.Context(), image); err != nil || len(did) != want {
					t.Errorf("did %q, %v", did, err)
				}
				for _, name := range c.replaces {
					cmp := exec.Command("cmp", filepath.Join(image, name), filepath.Join(p.BinDir, name))
					if out, err := cmp.CombinedOutput(); err != nil {
						t.Errorf("%s: %s", err, out)
					}
				}
			}
			install(len(c.replaces))
			install(0)
			// A newer image.
			old, err := os.ReadFile(shimPath)
			if err != nil {
				t.Fatal(err)
			}
			newer := filepath.Join(t.TempDir(), "newer")
			if err := os.WriteFile(newer, append(old, "newer"...), 0o755); err != nil {
				t.Fatal(err)
			}
			if changed, err := p.InstallShim(newer); err != nil || !changed {
				t.Errorf("changed %t, %v", changed, err)
			}

			there := tree(t, p.BinDir)
			would, err := p.Uninstall(true)
			if err != nil || !slices.Equal(tree(t, p.BinDir), there) {
				t.Errorf("a dry run has changed %s to %s, %v", there, tree(t, p.BinDir), err)
			}
			did, err := p.Uninstall(false)
			if err != nil || !slices.Equal(did, would) || len(did) != len(c.replaces)+2 {
				t.Errorf("did %q, would have done %q, %v", did, would, err)
			}
			if after := tree(t, p.BinDir); !slices.Equal(after, before) {
				t.Errorf("before\n%s\nafter\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
			}
			if left := tree(t, p.Kept); len(left) > 0 {
				t.Errorf("kept still: %s", left)
			}
			if did, err := p.Uninstall(false); err != nil || len(did) > 0 {
				t.Errorf("a second time: %q, %v", did, err)
			}
		})
	}
}

// A file that was installed there since is left alone, and is kept when it is replaced in turn.
func TestUninstallLeavesOthers(t *testing.T) {
	image := t.TempDir()
	speaking(t, image, "portmap", allVersions)
	speaking(t, image, "bandwidth", allVersions)
	p := Plugins{t.TempDir(), t.TempDir()}
	install := func() {
		t.Helper()
		if _, err := p.InstallChained(t.Context(), image); err != nil {
			t.Fatal(err)
		}
	}
	speaking(t, p.BinDir, "portmap", `"0.3.0"`)
	install()
	speaking(t, p.BinDir, "portmap", `"0.4.0"`)
	speaking(t, p.BinDir, "bandwidth", allVersions+`,"1.2.0"`)
	want := tree(t, p.BinDir)
	install() // portmap again
	did, err := p.Uninstall(false)
	if err != nil || !strings.Contains(strings.Join(did, "\n"), "bandwidth kept") {
		t.Errorf("did %q, %v", did, err)
	}
	if got := tree(t, p.BinDir); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// made is a program to install.
func made(t *testing.T, content string) program {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plugin")
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := readProgram(path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Killed between record and file: the file is not Fairlead's, and is left alone.
func TestKilledWhileInstalling(t *testing.T) {
	p := Plugins{t.TempDir(), t.TempDir()}
	speaking(t, p.BinDir, "portmap", `"0.3.0"`)
	before := tree(t, p.BinDir)
	comes, old := made(t, "new"), made(t, "old")
	if err := p.keep("portmap", comes); err != nil {
		t.Fatal(err)
	}
	if err := p.recordInstall("portmap", filepath.Join(p.BinDir, "portmap"), comes); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Uninstall(false); err != nil || !slices.Equal(tree(t, p.BinDir), before) {
		t.Errorf("%s, was %s, %v", tree(t, p.BinDir), before, err)
	}
	// The same when Fairlead's own is replaced by a newer one: it is Fairlead's.
	if _, err := p.install("portmap", old); err != nil {
		t.Fatal(err)
	}
	if err := p.recordInstall("portmap", filepath.Join(p.BinDir, "portmap"), comes); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Uninstall(false); err != nil || !slices.Equal(tree(t, p.BinDir), before) {
		t.Errorf("%s, was %s, %v", tree(t, p.BinDir), before, err)
	}
}
