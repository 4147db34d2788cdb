package cniserver_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/cniserver"
)

// peerSocket in the environment makes the test binary a caller of that socket.
const peerSocket = "FAIRLEAD_TEST_PEER"

// TestRootPeer: a caller that can open the socket in spite of its mode must be root.
func TestRootPeer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOTHING WAS TESTED: needs root to call as another user")
	}
	dir, err := os.MkdirTemp("/tmp", "fairlead-peer-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	h := &handler{}
	s := start(t, h, cniserver.Config{Socket: filepath.Join(dir, "cni.sock")})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}

	asNobody := func() (string, error) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{peerSocket + "=" + s.socket}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := asNobody(); err != nil || !strings.Contains(out, "permission denied") {
		t.Errorf("the socket's mode: %v %s", err, out)
	}
	if err := os.Chmod(s.socket, 0o666); err != nil {
		t.Fatal(err)
	}
	const refused = `"code":105,"msg":"user 65534 is not allowed to make CNI calls`
	if out, err := asNobody(); err != nil || !strings.Contains(out, refused) {
		t.Errorf("the peer's credentials: %v %s", err, out)
	}
	wantSuccess(t, ask(t, s.socket, request("STATUS")))
	if len(h.calls()) != 0 {
		t.Errorf("the handler saw %v", h.calls())
	}
}

// callAsPeer is the other user of TestRootPeer: it prints the response.
func callAsPeer(socket string) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Fprintln(conn, `{"command":"DEL"}`)
	answer, err := io.ReadAll(conn)
	fmt.Println(string(answer), err)
}
