package shim

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// asShim in the environment makes the test binary the plugin, with short timeouts. The other tests of the plugin run
// the real binary: package cniserver.
const asShim = "FAIRLEAD_TEST_SHIM"

func TestMain(m *testing.M) {
	if os.Getenv(asShim) != "" {
		os.Exit(mainWithin(3 * time.Second))
	}
	os.Exit(m.Run())
}

// callAndWait runs the plugin and returns the error that it prints. If stdin is "", its stdin stays open.
func callAndWait(t *testing.T, stdin string) types.Error {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{asShim + "=1", "CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/x",
		"CNI_PATH=/"}
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	} else {
		never, held, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		defer never.Close()
		cmd.Stdin = never
	}
	out, err := cmd.Output()
	if err == nil {
		t.Error("the plugin succeeded")
	}
	var e types.Error
	if err := json.Unmarshal(out, &e); err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	return e
}

func TestStdinNeverEnds(t *testing.T) {
	t.Parallel()
	e := callAndWait(t, "")
	if e.Code != types.ErrIOFailure || !strings.Contains(e.Msg, "stdin did not end within 3s") {
		t.Errorf("%d: %s", e.Code, e.Msg)
	}
}

func TestAgentHangs(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket) // accepts nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e := callAndWait(t, fmt.Sprintf(`{"cniVersion":"1.1.0","name":"n","type":"fairlead","cniSocket":%q}`, socket))
	if e.Code != types.ErrTryAgainLater || !strings.Contains(e.Msg, "timeout") {
		t.Errorf("%d: %s", e.Code, e.Msg)
	}
}

// The runtime executes the plugin for every call, so it stays small.
func TestSmall(t *testing.T) {
	const plugin = "github.com/fairlead-cni/fairlead/cmd/fairlead"
	const format = "{{if not .Standard}}{{.ImportPath}}{{end}}"
	out, err := exec.Command("go", "list", "-deps", "-f", format, plugin).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	allowed := []string{"github.com/containernetworking/cni/pkg/", "github.com/vishvananda/netns", "golang.org/x/sys/unix",
		"github.com/fairlead-cni/fairlead/cniserver/shim", "github.com/fairlead-cni/fairlead/cniserver/wire", plugin}
	for _, p := range strings.Fields(string(out)) {
		if !slices.ContainsFunc(allowed, func(a string) bool { return strings.HasPrefix(p, a) }) {
			t.Errorf("the plugin imports %s: each import costs start-up time in every CNI call (see the package comment)", p)
		}
	}
	out, err = exec.Command("go", "list", "-deps", plugin).CombinedOutput()
	if err != nil || slices.Contains(strings.Fields(string(out)), "net/http") {
		t.Errorf("the plugin imports net/http, which adds a third to its start-up time (%v)", err)
	}

	binary := filepath.Join(t.TempDir(), "fairlead")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, plugin)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	info, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", info.Size())
	if info.Size() > 4<<20 {
		t.Errorf("the plugin has %d bytes, more than 4 MiB", info.Size())
	}
}
