package main

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v3/pkg/chart/loader"

	"github.com/fairlead-cni/fairlead/test/chart"
)

const version = "v0.1.0-rc.1"

// command runs a program in dir.
func command(t *testing.T, dir string, stdin io.Reader, name string, args ...string) string {
	t.Helper()
	c := exec.Command(name, args...)
	c.Dir, c.Stdin = dir, stdin
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", c, err, out)
	}
	return string(out)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// commit makes dir a repository if needed, and adds a commit.
func commit(t *testing.T, dir string) {
	t.Helper()
	command(t, dir, nil, "git", "init", "-q")
	command(t, dir, nil, "git", "add", ".")
	command(t, dir, nil, "git", "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "--allow-empty", "-m", "t")
}

// Everything that is missing is reported before anything is built, with the remedy.
func TestWhatIsMissing(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n- a\n\n## v0.1.0-rc.1 (2026-12-01)\n\n- [b](docs/b.md#c)\n\n"+
		"## v0.1.0-rc.2\n\n## v0.0.1\n\n- c\n")
	write(t, root+"/.gitignore", "/out/\n")
	commit(t, root)
	refused := func(r release, want string) {
		t.Helper()
		r.root = root
		if r.arches == nil {
			r.arches = native()
		}
		if _, err := r.build(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", r, err, want)
		}
		if exists(root + "/out/image") {
			t.Errorf("%+v: something was built", r)
		}
	}
	for _, v := range []string{"", "dev", "0.1.0", "v0.1", "v0.01.0", "v0.1.0+a", "v0.1.0-", "v0.1.0\n", "v0.1.0-01"} {
		refused(release{version: v}, "not a release version: make release VERSION=v0.1.0")
	}
	refused(release{version: "v0.1.0"}, `no section "## v0.1.0" with text`)
	refused(release{version: "v0.1.0-rc.2"}, `no section "## v0.1.0-rc.2" with text`)
	refused(release{version: version, key: root + "/none"}, "is not a key that ssh-keygen can read")
	for _, arches := range [][]string{{}, {"x86"}, {"amd64", "amd64"}} {
		refused(release{version: version, arches: arches}, "architectures: amd64, arm64, or both")
	}
	notes, err := release{root: root, version: version, arches: native()}.check()
	const want = "# Fairlead v0.1.0-rc.1\n\n- [b](https://github.com/fairlead-cni/fairlead/blob/v0.1.0-rc.1/docs/b.md#c)\n"
	if err != nil || notes != want {
		t.Errorf("notes %q, %v, want %q", notes, err, want)
	}

	command(t, root, nil, "git", "tag", version)
	if _, err := (release{root: root, version: version, arches: native()}).check(); err != nil {
		t.Errorf("with its tag: %v", err)
	}
	commit(t, root)
	refused(release{version: version}, "the tag v0.1.0-rc.1 is on commit ")
	command(t, root, nil, "git", "tag", "-d", version)
	write(t, root+"/new", "")
	refused(release{version: version}, "commit or remove them\n?? new")
	if err := os.Remove(root + "/new"); err != nil {
		t.Fatal(err)
	}
	write(t, root+"/out/release/v0.1.0-rc.1/SHA256SUMS", "")
	refused(release{version: version}, "exists: remove it")
}

// A build that fails leaves nothing under the release's name, nor beside it.
func TestNoHalfRelease(t *testing.T) {
	for name, image := range map[string]string{
		"no image":           "exit 1",
		"no programs":        "exit 0",
		"the source changed": "mkdir -p out/image; cp -r ready out/image/programs; touch out/image/{fairlead.tar,sbom.cdx.json} new",
		"all is well":        "mkdir -p out/image; cp -r ready out/image/programs; touch out/image/{fairlead.tar,sbom.cdx.json}",
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, root+"/CHANGELOG.md", "## "+version+"\n\n- a\n")
			write(t, root+"/.gitignore", "/out/\n")
			for script, text := range map[string]string{"deps.sh": "", "image/image.sh": image} {
				write(t, root+"/build/"+script, "#!/bin/bash\n"+text+"\n")
				if err := os.Chmod(root+"/build/"+script, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			write(t, root+"/build/manifests/fairlead.yaml", "   image: fairlead/fairlead:dev\n")
			write(t, root+"/"+chartDir+"/Chart.yaml", "version: 1\n")
			for _, program := range []string{"usr/local/bin/fairleadctl", "tmp/bom", "usr/share/fairlead/LICENCES.txt"} {
				write(t, root+"/ready/"+program, "#!/bin/sh\n")
				if err := os.Chmod(root+"/ready/"+program, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			commit(t, root)
			_, err := release{root: root, version: version, arches: native()}.build()
			left, _ := filepath.Glob(root + "/out/release/*")
			if well := name == "all is well"; (err == nil) != well || (len(left) == 1) != well || len(left) > 1 {
				t.Errorf("%v, and there are %q", err, left)
			}
		})
	}
}

// Two copies of the source in different directories give the same files: programs, chart, manifest, lists, notes. The
// image's packages are left out; docs/release.md describes how to compare everything.
func TestTwoDirectoriesOneRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a release twice: make test")
	}
	// The working copy may belong to another user, as in a container.
	tracked := command(t, "../..", nil, "git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard")
	var sums, programs [2]string
	var dir string
	for i := range sums {
		r := release{root: filepath.Join(t.TempDir(), strings.Repeat("copy", i+1)), version: version,
			arches: []string{"amd64", "arm64"}}
		for path := range strings.Lines(tracked) {
			path = strings.TrimSpace(path)
			info, err := os.Stat("../../" + path)
			if errors.Is(err, os.ErrNotExist) {
				continue // deleted, but not yet committed
			}
			if err := errors.Join(err, os.MkdirAll(filepath.Dir(filepath.Join(r.root, path)), 0o755),
				copyFile("../../"+path, filepath.Join(r.root, path), info.Mode())); err != nil {
				t.Fatal(err)
			}
		}
		for _, arch := range r.arches {
			programsOf(t, r, arch)
			programs[i] += treeSum(t, r.programs(arch))
		}
		dir = filepath.Join(r.root, "release")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(r.files(dir, "notes"), writeSums(dir)); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(dir + "/SHA256SUMS")
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = string(text)
	}
	if sums[0] != sums[1] || strings.Count(sums[0], "\n") != 8 {
		t.Errorf("sums of 8 files\n%s\nand\n%s", sums[0], sums[1])
	}
	if programs[0] != programs[1] {
		t.Errorf("programs of the image\n%s\nand\n%s", programs[0], programs[1])
	}
	command(t, dir, nil, "sha256sum", "--strict", "-c", "SHA256SUMS")
	t.Run("version", func(t *testing.T) { hasVersion(t, dir) })
	t.Run("signature", func(t *testing.T) { verifies(t, dir) })
}

func native() []string { return []string{runtime.GOARCH} }

// programsOf builds the image's programs for an architecture: all are for that architecture, except the one that lists
// the components, which runs here.
func programsOf(t *testing.T, r release, arch string) {
	t.Helper()
	to, err := filepath.Abs(r.programs(arch))
	if err != nil {
		t.Fatal(err)
	}
	command(t, r.root, nil, "env", "ARCH="+arch, "build/image/programs.sh", to, version)
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	for pattern, want := range map[string]elf.Machine{"usr/local/bin/fairlead*": machines[arch],
		"usr/local/lib/cni/*": machines[arch], "tmp/bom": machines[runtime.GOARCH]} {
		paths, err := filepath.Glob(filepath.Join(to, pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %q, %v", pattern, paths, err)
		}
		for _, path := range paths {
			program, err := elf.Open(path)
			if err != nil {
				if text, _ := os.ReadFile(path); !bytes.HasPrefix(text, []byte("#!")) {
					t.Errorf("%s: %v", path, err)
				}
				continue
			}
			if program.Machine != want {
				t.Errorf("%s is of %s, want %s", path, program.Machine, want)
			}
			if err := program.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func treeSum(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(&out, "%x %v %s\n", sha256.Sum256(text), info.Mode(), strings.TrimPrefix(path, dir))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// hasVersion checks that Helm reads the chart, that it renders to the manifest, and that all parts have the version.
func hasVersion(t *testing.T, dir string) {
	path := dir + "/fairlead-" + version + ".tgz"
	c, err := loader.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil || c.Metadata.Version != version || c.Metadata.AppVersion != version {
		t.Errorf("the chart: %+v, %v", c.Metadata, err)
	}
	rendered, _, err := chart.Template(path, "kube-system")
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile(dir + "/fairlead.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if head, _, _ := strings.Cut(string(manifest), "---\n"); head+rendered != string(manifest) {
		t.Error("the manifest is not what the chart renders to")
	}
	if n := bytes.Count(manifest, []byte("image: fairlead/fairlead:"+version+"\n")); n != bytes.Count(manifest, []byte(" image: ")) || n < 5 {
		t.Errorf("%d images have the version", n)
	}
	if err := yaml.Unmarshal(manifest, new(any)); err != nil {
		t.Error(err)
	}
	program := "fairleadctl-linux-" + runtime.GOARCH
	if said := command(t, dir, nil, "./"+program, "--version"); !strings.Contains(said, " "+version+"\n") {
		t.Errorf("%s --version: %q", program, said)
	}
	text, err := os.ReadFile(dir + "/" + program + ".cdx.json")
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Metadata struct {
			Component struct{ Type, Version string }
		}
		Components []struct{ Name string }
	}
	if err := json.Unmarshal(text, &list); err != nil || list.Metadata.Component.Version != version ||
		list.Metadata.Component.Type != "application" || len(list.Components) < 20 {
		t.Errorf("the list of parts: %+v, %v", list, err)
	}
}

// verifies checks that signed files verify as described in docs/release.md, and fail to do so after a byte is changed.
func verifies(t *testing.T, dir string) {
	key := filepath.Join(t.TempDir(), "key")
	command(t, dir, nil, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
	if err := sign(dir, key); err != nil {
		t.Fatal(err)
	}
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/allowed_signers", "fairlead "+string(public))
	sums, err := os.ReadFile(dir + "/SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/release.md")
	if err != nil {
		t.Fatal(err)
	}
	const verify = "ssh-keygen -Y verify -f allowed_signers -I fairlead -n file -s SHA256SUMS.sig"
	if !strings.Contains(string(page), verify+" < SHA256SUMS") {
		t.Errorf("docs/release.md does not have the command %s", verify)
	}
	words := strings.Fields(verify)
	command(t, dir, bytes.NewReader(sums), words[0], words[1:]...)
	c := exec.Command(words[0], words[1:]...)
	c.Dir, c.Stdin = dir, bytes.NewReader(append([]byte("0"), sums[1:]...))
	if sums[0] == '0' {
		c.Stdin = bytes.NewReader(append([]byte("1"), sums[1:]...))
	}
	if out, err := c.CombinedOutput(); err == nil {
		t.Errorf("a changed sum verifies: %s", out)
	}
}
