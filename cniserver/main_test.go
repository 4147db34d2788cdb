package cniserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/cniserver/wire"
)

// patience bounds waits for operations that take milliseconds.
const patience = time.Minute

// reference is the import path of the reference plugins, of the version in go.mod.
const reference = "github.com/containernetworking/plugins/plugins/"

// Created by TestMain for all tests: the plugin, and a network namespace other than the test's own.
var (
	binDir   string
	netns    string
	netnsErr error
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(peerSocket); socket != "" {
		callAsPeer(socket)
		os.Exit(0)
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "fairlead-cniserver-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	binDir = dir
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", dir+"/", "../cmd/fairlead", reference+"ipam/static")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Printf("building the shim, and the reference plugin static: %v\n%s", err, out)
		return 1
	}
	end := holdNetns()
	defer end()
	return m.Run()
}

// holdNetns starts a process in a network namespace of its own. It reads stdin until that is closed: at the latest when
// this process ends.
func holdNetns() (end func()) {
	holder := exec.Command("cat")
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Geteuid() != 0 {
		holder.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
	}
	stdin, err := holder.StdinPipe()
	if err == nil {
		err = holder.Start()
	}
	if err != nil {
		netnsErr = err
		return func() {}
	}
	netns = fmt.Sprintf("/proc/%d/ns/net", holder.Process.Pid)
	return func() { stdin.Close(); holder.Wait() }
}

func needNetns(t testing.TB) string {
	t.Helper()
	if netnsErr != nil {
		t.Skipf("SKIPPED, NOTHING WAS TESTED: cannot make a network namespace: %v", netnsErr)
	}
	return netns
}

// handler is the test's Handler. A verb without a function succeeds.
type handler struct {
	add    func(context.Context, cniserver.Request) (cniserver.Result, error)
	del    func(context.Context, cniserver.Request) error
	check  func(context.Context, cniserver.Request) error
	gc     func(context.Context, string, []cniserver.AttachmentID) error
	status func(context.Context) error

	mu   sync.Mutex
	seen []cniserver.Request // by ADD, DEL and CHECK
}

func (h *handler) saw(r cniserver.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = append(h.seen, r)
}

func (h *handler) calls() []cniserver.Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]cniserver.Request(nil), h.seen...)
}

func (h *handler) Add(ctx context.Context, r cniserver.Request) (cniserver.Result, error) {
	h.saw(r)
	if h.add != nil {
		return h.add(ctx, r)
	}
	return dualStack(), nil
}

func (h *handler) Del(ctx context.Context, r cniserver.Request) error {
	h.saw(r)
	if h.del != nil {
		return h.del(ctx, r)
	}
	return nil
}

func (h *handler) Check(ctx context.Context, r cniserver.Request) error {
	h.saw(r)
	if h.check != nil {
		return h.check(ctx, r)
	}
	return nil
}

func (h *handler) GC(ctx context.Context, network string, valid []cniserver.AttachmentID) error {
	if h.gc != nil {
		return h.gc(ctx, network, valid)
	}
	return nil
}

func (h *handler) Status(ctx context.Context) error {
	if h.status != nil {
		return h.status(ctx)
	}
	return nil
}

// addresses is the test's IPAM.
type addresses struct {
	given []cniserver.Address
	err   error // of all verbs

	mu   sync.Mutex
	seen []string
}

func (a *addresses) saw(format string, args ...any) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = append(a.seen, fmt.Sprintf(format, args...))
	return a.err
}

func (a *addresses) calls() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.seen...)
}

func (a *addresses) Add(_ context.Context, r cniserver.AddressRequest) ([]cniserver.Address, error) {
	err := a.saw("ADD %s %s %s/%s %s pools %v wanted %v", r.ContainerID, r.IfName, r.PodNamespace, r.PodName, r.Network,
		r.Pools, r.Wanted)
	if len(r.Pools) == 0 {
		return nil, err
	}
	return a.given, err
}

func (a *addresses) Del(_ context.Context, r cniserver.Request) error {
	return a.saw("DEL %s %s %s", r.ContainerID, r.IfName, r.Network)
}

func (a *addresses) Check(_ context.Context, r cniserver.AddressRequest) error {
	return a.saw("CHECK %s %s %s prev %v", r.ContainerID, r.IfName, r.Network, r.PrevAddrs)
}

func (a *addresses) GC(_ context.Context, network string, valid []cniserver.AttachmentID) error {
	return a.saw("GC %s %v", network, valid)
}

func (a *addresses) Status(_ context.Context, pools []string) error { return a.saw("STATUS %v", pools) }

func dualStack() cniserver.Result {
	return cniserver.Result{
		HostIf: "fl0123456789ab", MAC: api.MAC{0x02, 0, 0, 0, 0, 7}, MTU: 1450,
		Addrs:    []netip.Prefix{netip.MustParsePrefix("10.1.0.7/24"), netip.MustParsePrefix("fd00:1::7/64")},
		Gateways: []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd00:1::1")},
	}
}

// server is a running Server.
type server struct {
	socket string
	stop   func() error // returns what Serve returned
	log    *syncBuffer
	obs    *syncBuffer // one line per call: VERB CODE
}

type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *syncBuffer) add(s string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b.WriteString(s + "\n")
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start starts a server with h; cfg may set the durations. It stops with the test.
func start(t testing.TB, h cniserver.Handler, cfg cniserver.Config) *server {
	t.Helper()
	s := &server{log: &syncBuffer{}, obs: &syncBuffer{}}
	if cfg.Socket == "" {
		cfg.Socket = filepath.Join(t.TempDir(), "run", "cni.sock")
	}
	s.socket = cfg.Socket
	cfg.Handler = h
	if cfg.IPAM == nil {
		cfg.IPAM = &addresses{}
	}
	cfg.Log = funcr.New(func(_, args string) { s.log.add(args) }, funcr.Options{Verbosity: 1})
	cfg.Observe = func(verb, code string, seconds float64) {
		if seconds < 0 || seconds > 60 {
			t.Errorf("%s took %f s", verb, seconds)
		}
		s.obs.add(verb + " " + code)
	}
	srv, err := cniserver.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- srv.Serve(ctx) }()
	s.stop = sync.OnceValue(func() error { cancel(); return <-result })
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func dial(t *testing.T, socket string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// request is an ADD by a runtime for a Kubernetes pod, or another verb of the
// same attachment; edit changes it.
func request(verb string, edit ...func(*wire.Request)) wire.Request {
	r := wire.Request{Command: verb, ContainerID: "c1", IfName: "eth0", Netns: netns, Path: "/opt/cni/bin",
		Args:   "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u-1",
		Config: json.RawMessage(`{"cniVersion":"1.1.0","name":"fairlead","type":"fairlead"}`)}
	if verb == "GC" {
		r.Config = json.RawMessage(`{"cniVersion":"1.1.0","name":"fairlead","type":"fairlead",
			"cni.dev/valid-attachments":[]}`)
	}
	for _, e := range edit {
		e(&r)
	}
	return r
}

func config(format string, args ...any) func(*wire.Request) {
	return func(r *wire.Request) { r.Config = json.RawMessage(fmt.Sprintf(format, args...)) }
}

func container(id string) func(*wire.Request) { return func(r *wire.Request) { r.ContainerID = id } }

// send writes a request and keeps the connection open.
func send(t *testing.T, conn net.Conn, r wire.Request) {
	t.Helper()
	line, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, conn io.Reader) wire.Response {
	t.Helper()
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		t.Fatalf("reading the response: %v (%q)", err, line)
	}
	var r wire.Response
	if err := json.Unmarshal(line, &r); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	return r
}

// ask makes one call.
func ask(t *testing.T, socket string, r wire.Request) wire.Response {
	t.Helper()
	conn := dial(t, socket)
	defer conn.Close()
	send(t, conn, r)
	return receive(t, conn)
}

// wantError checks the code and parts of the text of an error.
func wantError(t *testing.T, r wire.Response, code uint, parts ...string) {
	t.Helper()
	if r.Error == nil {
		t.Errorf("success (%s), want error %d with %q", r.Result, code, parts)
		return
	}
	if r.Error.Code != code {
		t.Errorf("code %d, want %d (%s)", r.Error.Code, code, r.Error)
	}
	for _, p := range parts {
		if !strings.Contains(r.Error.Error(), p) {
			t.Errorf("%q does not contain %q", r.Error, p)
		}
	}
	if strings.Contains(r.Error.Error(), "goroutine") || strings.Contains(r.Error.Error(), ".go:") {
		t.Errorf("a stack: %s", r.Error)
	}
}

func wantSuccess(t *testing.T, r wire.Response) {
	t.Helper()
	if r.Error != nil {
		t.Errorf("error %d: %s", r.Error.Code, r.Error)
	}
}

// eventually waits until f returns true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not after %s: %s", patience, what)
		}
	}
}

func receiveWithin[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("not after %s: %s", patience, what)
		panic("not reached")
	}
}
