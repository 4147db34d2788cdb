//go:build imagetest

package image

import (
	"cmp"
	"debug/elf"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The arm64 image has only arm64 programs, which run, and the same packages as the amd64 image. FAIRLEAD_TEST_IMAGES is
// the directory of both, by default out. Programs that this machine cannot run natively run through the kernel's
// binfmt_misc.
func TestRootImageOfArm64(t *testing.T) {
	// These first open a NETLINK_NETFILTER socket, which qemu's user-mode emulation does not support.
	const noNetfilter = `Protocol not supported`
	out := cmp.Or(os.Getenv("FAIRLEAD_TEST_IMAGES"), "../../out")
	amd64, arm64 := unpack(t, filepath.Join(out, "image/fairlead.tar"), "amd64"),
		unpack(t, filepath.Join(out, "image-arm64/fairlead.tar"), "arm64")
	machines(t, amd64, elf.EM_X86_64)
	machines(t, arm64, elf.EM_AARCH64)
	want, got := packages(t, amd64), packages(t, arm64)
	for name, version := range want {
		if got[name] != version {
			t.Errorf("%s: amd64 has %s, arm64 %q", name, version, got[name])
		}
	}
	for name, version := range got {
		if want[name] == "" {
			t.Errorf("%s %s: arm64 alone has it", name, version)
		}
	}
	t.Logf("%d packages", len(got))
	for command, answer := range map[string]string{
		"ovs-vswitchd --version":                      `ovs-vswitchd \(Open vSwitch\) \d`,
		"ovsdb-server --version":                      `ovsdb-server \(Open vSwitch\) \d`,
		"ovs-vsctl --version":                         `ovs-vsctl \(Open vSwitch\) \d`,
		"fairlead-agent --help":                       `(?i)usage`,
		"fairlead-controller --help":                  `(?i)usage`,
		"fairleadctl --help":                          `(?i)usage`,
		"env CNI_COMMAND=VERSION fairlead":            `"supportedVersions"`,
		"iptables-nft --version":                      `iptables v\S+ \(nf_tables\)|` + noNetfilter,
		"iptables-legacy --version":                   `iptables v\S+ \(legacy\)`,
		"FAIRLEAD_IPTABLES=legacy iptables --version": `iptables v\S+ \(legacy\)`,
		"/usr/local/lib/cni/portmap":                  `portmap`,
		"nft --version":                               `nftables v|` + noNetfilter,
		"ip -V":                                       `iproute2`,
		"dpkg --print-architecture":                   `^arm64$`,
		"sh -c 'dpkg --audit && echo healthy'":        `^healthy$`,
	} {
		cmd := exec.Command("chroot", arm64, "sh", "-c", command)
		cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
		cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0"}`)
		text, err := cmd.CombinedOutput() // -help exits with an error in some programs; the answer counts
		if !regexp.MustCompile(answer).MatchString(strings.TrimSpace(string(text))) {
			t.Errorf("%s: %v, want %s:\n%s", command, err, answer, text)
		}
	}
}

// unpack returns the root directory of an image in docker's archive format, whose configuration must name arch.
func unpack(t *testing.T, archive, arch string) string {
	t.Helper()
	dir, root := t.TempDir(), t.TempDir()
	run(t, "tar", "-xf", archive, "-C", dir)
	var manifest []struct {
		Config string
		Layers []string
	}
	var config struct{ Architecture, OS string }
	read(t, filepath.Join(dir, "manifest.json"), &manifest)
	read(t, filepath.Join(dir, manifest[0].Config), &config)
	if config.Architecture != arch || config.OS != "linux" {
		t.Errorf("%s: its configuration says %s/%s, want linux/%s", archive, config.OS, config.Architecture, arch)
	}
	for _, layer := range manifest[0].Layers {
		run(t, "tar", "--numeric-owner", "-xpf", filepath.Join(dir, layer), "-C", root)
	}
	return root
}

func read(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err = errors.Join(err, json.Unmarshal(text, into)); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func run(t *testing.T, command ...string) {
	t.Helper()
	if text, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, text)
	}
}

// machines fails t for each ELF file below root that is for another machine. BPF programs are for the kernel, the same
// on all.
func machines(t *testing.T, root string, want elf.Machine) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		file, err := elf.Open(path)
		if err != nil {
			return nil // not an ELF file
		}
		defer file.Close()
		if files++; file.Machine != want && file.Machine != elf.EM_BPF {
			t.Errorf("%s: %s, want %s", strings.TrimPrefix(path, root), file.Machine, want)
		}
		return nil
	})
	if err != nil || files == 0 {
		t.Errorf("%d ELF files in %s: %v", files, root, err)
	}
	t.Logf("%s: %d ELF files", want, files)
}

// packages returns the versions of the packages in dpkg's database.
func packages(t *testing.T, root string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "var/lib/dpkg/status"))
	if err != nil {
		t.Fatal(err)
	}
	rebuilt, versions := regexp.MustCompile(`\+b\d+$`), map[string]string{}
	for entry := range strings.SplitSeq(string(text), "\n\n") {
		fields := map[string]string{}
		for line := range strings.SplitSeq(entry, "\n") {
			if name, value, ok := strings.Cut(line, ": "); ok {
				fields[name] = value
			}
		}
		if fields["Package"] != "" {
			// Debian may have rebuilt a package on one architecture: +b1.
			versions[fields["Package"]] = rebuilt.ReplaceAllString(fields["Version"], "")
		}
	}
	return versions
}
