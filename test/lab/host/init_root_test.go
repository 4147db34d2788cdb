package host

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	Init()
	if len(os.Args) == 2 && os.Args[1] == visits {
		visit()
	}
	if len(os.Args) == 3 && os.Args[1] == serves {
		serve(os.Args[2])
	}
	os.Exit(m.Run())
}

// A host with a process 1 sees its own processes, cgroups and boot ID, runs daemons in its cgroups, and ends with its
// process 1, including everything that was started in it.
func TestRootInit(t *testing.T) {
	dir := labDir(t)
	h := create(t, dir, "own")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.StartInit(self); err != nil {
		t.Fatal(err)
	}
	groups, err := os.ReadFile(h.cgroupList())
	if err != nil || len(strings.Fields(string(groups))) == 0 {
		t.Fatalf("cgroups %q, %v", groups, err)
	}
	daemon := Process{Host: h, Name: "sleeper"}
	if err := daemon.Start("sh", "-c", "setsid sleep 1000 & exec sleep 1000"); err != nil {
		t.Fatal(err)
	}
	output(t, h, "timeout 20 sh -c 'until [ $(ps -e -o args= | grep -c ^sleep.1000) = 2 ]; do sleep 0.05; done'")
	machine, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	for script, want := range map[string]string{
		"readlink /proc/1/exe":                                  self,
		"cat /proc/sys/kernel/panic /proc/sys/kernel/hostname":  "10\nown",
		"stat -f -c %T /sys/fs/bpf":                             "bpf_fs",
		"grep ' / / ' /proc/self/mountinfo | grep -c shared:":   "1",
		"cut -d: -f3 /proc/$(pgrep -xo sleep)/cgroup | sort -u": "/",
	} {
		if got := strings.TrimSpace(output(t, h, script)); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
	got := output(t, h, "cat /proc/sys/kernel/random/boot_id")
	if got == string(machine) || len(got) != 37 {
		t.Errorf("boot ID %q, and the machine's is %s", got, machine)
	}
	var pids []string
	for _, group := range strings.Fields(string(groups)) {
		procs, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
		if err != nil {
			t.Error(err)
		}
		pids = append(pids, strings.Fields(string(procs))...)
	}
	if len(pids) == 0 {
		t.Error("no process is in the host's cgroups")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, group := range strings.Fields(string(groups)) { // frozen, as by a runtime that was killed meanwhile
		freezer := filepath.Join(group, "freezer.state") // version 1 only: in version 2 frozen processes can be killed
		if _, err := os.Stat(freezer); err == nil {
			if err := os.WriteFile(freezer, []byte("FROZEN"), 0o644); err != nil {
				t.Error(err)
			}
		}
	}
	if err := Kill(ctx, h); err != nil {
		t.Fatal(err)
	}
	if err := h.Destroy(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range slices.Compact(pids) {
		if _, err := os.Stat("/proc/" + pid); err == nil {
			t.Errorf("process %s is left", pid)
		}
	}
	for _, group := range strings.Fields(string(groups)) {
		if _, err := os.Stat(group); err == nil {
			t.Errorf("%s is left", group)
		}
	}
}

// Init fails with a reason, and leaves nothing behind.
func TestRootInitFails(t *testing.T) {
	h := create(t, labDir(t), "failing")
	err := h.StartInit("/bin/echo")
	if err == nil || !strings.Contains(err.Error(), "process 1 of host failing") {
		t.Errorf("%v", err)
	}
}

func TestHierarchies(t *testing.T) {
	got := hierarchies("4:memory:/a/b\n2:cpu,cpuacct:/\n9:name=systemd:/\n0::/\n", false)
	want := []hierarchy{
		{"memory", "/sys/fs/cgroup/memory", "/a/b"},
		{"cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct", "/"},
		{"none,name=systemd", "/sys/fs/cgroup/systemd", "/"},
		{"", "/sys/fs/cgroup/unified", "/"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	got = hierarchies("0::/user.slice\n", true)
	if want := (hierarchy{"", "/sys/fs/cgroup", "/user.slice"}); len(got) != 1 || got[0] != want {
		t.Errorf("version 2: %+v", got)
	}
	if !isUnifiedLines("0::/\n") || isUnifiedLines("3:cpu:/\n0::/\n") {
		t.Error("which versions there are")
	}
}
