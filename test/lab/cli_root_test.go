package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
)

// One lab, used from the command line as by a user.
func TestRootCommandLine(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a lab needs root")
	}
	bin := filepath.Join(t.TempDir(), "lab")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("building lab: %v\n%s", err, out)
	}
	dir := filepath.Join(t.TempDir(), "lab")
	run := func(stdin string, args ...string) (string, int) {
		t.Helper()
		cmd := exec.Command(bin, append([]string{"--dir", dir}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	check := func(stdin, want string, code int, args ...string) {
		t.Helper()
		if out, got := run(stdin, args...); got != code || !strings.Contains(out, want) {
			t.Errorf("lab %s: exit code %d, want %d, and want %q in\n%s", strings.Join(args, " "), got, code, want, out)
		}
	}
	check("", "", 0, "down") // without a lab
	t.Cleanup(func() { check("", "processes, namespaces and mounts", 0, "down") })
	check("", "The lab is up in "+dir+": 1 nodes", 0, "up", "--nodes", "1", "--no-agent")
	check("", "lab: a lab is up in "+dir, 1, "up", "--no-agent")

	check("from stdin", "from stdin", 0, "node", "node1", "--", "cat")
	check("", "", 3, "node", "node1", "--", "sh", "-c", "exit 3")
	check("", "node1", 0, "node", "node1", "--", "hostname")
	check("", `lab: the lab has no node "node9"`, 1, "node", "node9", "--", "hostname")
	check("", "not found", 1, "node", "node1", "--", "no-such-program")

	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {nodeName: node1, hostNetwork: true}\n"
	check(pod+"  bad: [", "lab: -: document 1", 1, "apply", "-f", "-")
	check("", "(none)", 0, "get", "pods")
	check(pod, "pod/default/a created", 0, "apply", "-f", "-", "--wait", "60s")
	check("", "default/a  node1  HostNetwork  192.168.77.11,fd77::11", 0, "status")
	check("", "eth0", 0, "pod", "default/a", "--", "ip", "-br", "link")
	var status struct{ Pods []lab.PodState }
	if out, _ := run("", "status", "-o", "json"); json.Unmarshal([]byte(out), &status) != nil || len(status.Pods) != 1 {
		t.Errorf("status -o json printed %s", out)
	}
	check(pod, "pod/default/a deleted", 0, "delete", "-f", "-", "--wait", "60s")
	check(pod, "lab: pod/default/a was not found", 1, "delete", "-f", "-")
	check(pod, "pod/default/a not found", 0, "delete", "-f", "-", "--ignore-not-found")

	check("", "no CNI configuration in /etc/cni/net.d", 1, "cni", "node1", "STATUS")
	check("", "lab: STATUS takes no pod", 1, "cni", "node1", "STATUS", "a/b")
	check("", "not started", 0, "agent", "node1", "status")
	check("", `lab: "vswitch" is none of [vswitchd ovsdb guard]`, 1, "ovs", "node1", "kill", "vswitch")
	check("", `lab: "restart" is none of start, stop and kill`, 1, "ovs", "node1", "restart")
	check("", "pod runner started", 0, "runner", "log")
	check("", "", 0, "runner", "kill")
	check("", "The pod runner is not running: lab runner start", 0, "status")
	check("", "", 0, "runner", "start")
}

// Ctrl-C during up removes everything that exists so far, and up reports the interruption.
func TestRootInterruptedUp(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a lab needs root")
	}
	bin := filepath.Join(t.TempDir(), "lab")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("building lab: %v\n%s", err, out)
	}
	dir := filepath.Join(t.TempDir(), "lab")
	cmd := exec.CommandContext(t.Context(), bin, "--dir", dir, "up", "--nodes", "100", "--no-agent")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "hosts/node2/ns/mnt")); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("node2 did not appear:\n%s", &out)
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("it ended with %v", cmd.ProcessState)
	}
	if !strings.Contains(out.String(), "cleaning up\nlab: interrupted: ") {
		t.Errorf("it said\n%s", &out)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s is left", dir)
	}
}
