package cniserver_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/cniserver/wire"
)

// When no agent listens: try again later, also for DEL and GC, whose success would leak an address.
func TestNoAgent(t *testing.T) {
	needNetns(t)
	socket := filepath.Join(t.TempDir(), "cni.sock")
	rt, ctx := newRuntime(t, socket, "1.1.0"), callContext(t)
	calls := map[string]func() error{
		"ADD":    func() error { _, err := rt.cni.AddNetworkList(ctx, rt.list, container1("c1")); return err },
		"DEL":    func() error { return rt.cni.DelNetworkList(ctx, rt.list, container1("c1")) },
		"GC":     func() error { return rt.cni.GCNetworkList(ctx, rt.list, &libcni.GCArgs{}) },
		"STATUS": func() error { return rt.cni.GetStatusNetworkList(ctx, rt.list) },
		"CHECK": func() error {
			out, _, _ := run(t, "fairlead", env("CHECK"), fmt.Sprintf(
				`{"cniVersion":"1.1.0","name":"n","type":"fairlead","cniSocket":%q}`, socket))
			return errorIn(t, out)
		},
	}
	check := func(t *testing.T, says ...string) {
		for verb, call := range calls {
			code := types.ErrTryAgainLater
			if verb == "STATUS" {
				code = types.ErrPluginNotAvailable
			}
			var e *types.Error
			if err := call(); !errors.As(err, &e) {
				t.Errorf("%s: %v", verb, err)
				continue
			}
			wantError(t, wire.Response{Error: e}, code, append(says, "fairlead-agent of this node does not answer")...)
		}
	}
	t.Run("never started", func(t *testing.T) { check(t, "no such file", "Is it running?") })

	const reason = "node worker-7 has no podCIDR: cluster CIDR 192.168.0.0/22 cut into /24 holds 4 nodes, and 10 exist"
	if err := os.WriteFile(wire.LastErrorPath(socket), []byte(reason+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Run("left a reason", func(t *testing.T) { check(t, "Its last error: "+reason) })

	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	t.Run("killed", func(t *testing.T) { check(t, "connection refused", reason) })
}

func errorIn(t *testing.T, out string) error {
	t.Helper()
	var e types.Error
	if err := json.Unmarshal([]byte(out), &e); err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	return &e
}

// The reason may be long, or not be text at all.
func TestLastErrorIsBounded(t *testing.T) {
	needNetns(t)
	socket := filepath.Join(t.TempDir(), "cni.sock")
	conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"n","type":"fairlead","cniSocket":%q}`, socket)
	for name, content := range map[string]string{
		"long": strings.Repeat("reason ", 1<<20), "binary": "\xff\x00 why \n", "empty": "\n",
	} {
		if err := os.WriteFile(wire.LastErrorPath(socket), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		out, _, exit := run(t, "fairlead", env("ADD"), conf)
		wantPrinted(t, out, exit, 11, "does not answer")
		if len(out) > 10<<10 {
			t.Errorf("%s: %d bytes", name, len(out))
		}
	}
}

// An agent that dies, or sends garbage, during a call.
func TestAgentBreaks(t *testing.T) {
	needNetns(t)
	for name, c := range map[string]struct{ answer, says string }{
		"dies":          {"", "stopped before it answered"},
		"dies midway":   {`{"result":{"cni`, "stopped before it answered"},
		"nonsense":      {"hello\n", "the agent's answer"},
		"endless":       {strings.Repeat("x", 5<<20), "stopped before it answered"},
		"another shape": {"[1,2]\n", "the agent's answer"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "cni.sock")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				conn.Read(make([]byte, 10))
				conn.Write([]byte(c.answer))
				conn.Close()
			}()
			out, _, exit := run(t, "fairlead", env("ADD"), fmt.Sprintf(
				`{"cniVersion":"1.1.0","name":"n","type":"fairlead","cniSocket":%q}`, socket))
			wantPrinted(t, out, exit, 11, "does not answer", c.says)
		})
	}
}

func TestVersionNeedsNoAgent(t *testing.T) {
	out, stderr, exit := run(t, "fairlead", []string{"CNI_COMMAND=VERSION"}, `{"cniVersion":"1.0.0"}`)
	want := `{"cniVersion":"1.1.0","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`
	if exit != 0 || stderr != "" || canonical(t, out) != want {
		t.Errorf("exit code %d, stderr %q: %s", exit, stderr, out)
	}
}

func TestCalledByAHuman(t *testing.T) {
	out, stderr, exit := run(t, "fairlead", []string{"PATH=/bin", "HOME=/root"}, "")
	if exit != 0 || out != "" || !strings.Contains(stderr, "Fairlead CNI plugin") ||
		!strings.Contains(stderr, "CNI_COMMAND=STATUS") {
		t.Errorf("exit code %d, stdout %q, stderr %q", exit, out, stderr)
	}
}

// The longest configuration that the plugin sends is accepted by the server.
func TestLongConfiguration(t *testing.T) {
	needNetns(t)
	s := start(t, &handler{}, cniserver.Config{})
	conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"n","type":"fairlead","cniSocket":%q,"pad":"%s"}`, s.socket,
		strings.Repeat("x", wire.MaxRequest-1000))
	if out, _, exit := run(t, "fairlead", env("ADD"), conf); exit != 0 {
		t.Error(out)
	}
}
