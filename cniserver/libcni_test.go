package cniserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/cniserver/wire"
)

// runtime is a container runtime: libcni with the real plugin.
type runtime struct {
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

func newRuntime(t *testing.T, socket, cniVersion string) runtime {
	t.Helper()
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{"cniVersion":%q,"name":"fairlead","plugins":[
		{"type":"fairlead","cniSocket":%q,"dns":{"nameservers":["10.96.0.10"],"search":["svc"]}}]}`, cniVersion, socket))
	if err != nil {
		t.Fatal(err)
	}
	// RawExec's own default is created at the first call, which is a data race.
	execute := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}}
	return runtime{libcni.NewCNIConfigWithCacheDir([]string{binDir}, t.TempDir(), execute), list}
}

func container1(id string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: id, NetNS: netns, IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "web-0"}, {"K8S_POD_UID", "u-1"}}}
}

func callContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Every verb in every version of the spec.
func TestLibCNI(t *testing.T) {
	needNetns(t)
	for i, v := range wire.Versions() {
		t.Run(v, func(t *testing.T) {
			h := &handler{}
			s := start(t, h, cniserver.Config{})
			rt, ctx := newRuntime(t, s.socket, v), callContext(t)
			res, err := rt.cni.AddNetworkList(ctx, rt.list, container1("c1"))
			if err != nil {
				t.Fatal(err)
			}
			checkResult(t, res, v)

			err = rt.cni.CheckNetworkList(ctx, rt.list, container1("c1"))
			if hasCheck := i >= 2; hasCheck != (err == nil) {
				t.Errorf("CHECK in %s: %v", v, err)
			}
			if err := rt.cni.DelNetworkList(ctx, rt.list, container1("c1")); err != nil {
				t.Errorf("DEL: %v", err)
			}
			for _, r := range h.calls() {
				if r.PodName != "web-0" || r.Netns != netns || r.Network != "fairlead" {
					t.Errorf("the handler saw %+v", r)
				}
			}
			if i >= 2 {
				if check := h.calls()[1]; !slices.Equal(check.PrevAddrs, dualStack().Addrs) || check.PrevMAC != dualStack().MAC {
					t.Errorf("CHECK saw %+v", check)
				}
			}
		})
	}
}

func checkResult(t *testing.T, res types.Result, cniVersion string) {
	t.Helper()
	if res.Version() != cniVersion {
		t.Errorf("a result of version %s", res.Version())
	}
	r, err := types100.GetResult(res)
	if err != nil {
		t.Fatal(err)
	}
	mtu := 0
	if cniVersion == "1.1.0" {
		mtu = 1450
	}
	want := &types100.Result{CNIVersion: "1.1.0",
		Interfaces: []*types100.Interface{
			{Name: "fl0123456789ab"}, {Name: "eth0", Mac: "02:00:00:00:00:07", Sandbox: netns, Mtu: mtu}},
		DNS: types.DNS{Nameservers: []string{"10.96.0.10"}, Search: []string{"svc"}},
	}
	for i, a := range dualStack().Addrs {
		gw := dualStack().Gateways[i]
		dst := must(types.ParseCIDR("0.0.0.0/0"))
		if a.Addr().Is6() {
			dst = must(types.ParseCIDR("::/0"))
		}
		want.IPs = append(want.IPs, &types100.IPConfig{Interface: types100.Int(1),
			Address: *must(types.ParseCIDR(a.String())), Gateway: gw.AsSlice()})
		want.Routes = append(want.Routes, &types.Route{Dst: *dst, GW: gw.AsSlice()})
	}
	if got, want := jsonOf(r), jsonOf(want); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestLibCNIStatusAndGC(t *testing.T) {
	needNetns(t)
	var valid []cniserver.AttachmentID
	h := &handler{
		gc:     func(_ context.Context, _ string, v []cniserver.AttachmentID) error { valid = v; return nil },
		status: func(context.Context) error { return errors.New("node worker-7 has no podCIDR") },
	}
	s := start(t, h, cniserver.Config{})
	rt, ctx := newRuntime(t, s.socket, "1.1.0"), callContext(t)
	var e *types.Error
	if err := rt.cni.GetStatusNetworkList(ctx, rt.list); !errors.As(err, &e) || e.Code != 50 ||
		e.Msg != "node worker-7 has no podCIDR" {
		t.Errorf("STATUS: %v", err)
	}
	h.status = nil
	if err := rt.cni.GetStatusNetworkList(ctx, rt.list); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	for _, id := range []string{"c1", "c2"} {
		if _, err := rt.cni.AddNetworkList(ctx, rt.list, container1(id)); err != nil {
			t.Fatal(err)
		}
	}
	err := rt.cni.GCNetworkList(ctx, rt.list, &libcni.GCArgs{
		ValidAttachments: []types.GCAttachment{{ContainerID: "c2", IfName: "eth0"}}})
	if err != nil || fmt.Sprint(valid) != "[{c2 eth0}]" {
		t.Errorf("GC: %v, valid %v", err, valid)
	}
	// libcni itself calls DEL for cached attachments that are not valid.
	calls := h.calls()
	if last := calls[len(calls)-1]; len(calls) != 3 || last.ContainerID != "c1" {
		t.Errorf("calls: %+v", calls)
	}
	if err := rt.cni.GCNetworkList(ctx, rt.list, &libcni.GCArgs{}); err != nil || len(valid) != 0 {
		t.Errorf("GC without valid attachments: %v, %v", err, valid)
	}
}

// The plugin's output, byte for byte except for whitespace.
func TestPrintedResult(t *testing.T) {
	needNetns(t)
	s := start(t, &handler{}, cniserver.Config{})
	for v, want := range map[string]string{
		"0.3.0": `{"cniVersion":"0.3.0","interfaces":[{"name":"fl0123456789ab"},
			{"name":"eth0","mac":"02:00:00:00:00:07","sandbox":"NETNS"}],
			"ips":[{"version":"4","interface":1,"address":"10.1.0.7/24","gateway":"10.1.0.1"},
			{"version":"6","interface":1,"address":"fd00:1::7/64","gateway":"fd00:1::1"}],
			"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"},{"dst":"::/0","gw":"fd00:1::1"}],"dns":{}}`,
		"1.1.0": `{"cniVersion":"1.1.0","interfaces":[{"name":"fl0123456789ab"},
			{"mac":"02:00:00:00:00:07","mtu":1450,"name":"eth0","sandbox":"NETNS"}],
			"ips":[{"address":"10.1.0.7/24","gateway":"10.1.0.1","interface":1},
			{"address":"fd00:1::7/64","gateway":"fd00:1::1","interface":1}],
			"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"},{"dst":"::/0","gw":"fd00:1::1"}]}`,
	} {
		out, stderr, code := run(t, "fairlead", env("ADD"), fmt.Sprintf(
			`{"cniVersion":%q,"name":"n","type":"fairlead","cniSocket":%q}`, v, s.socket))
		want = strings.ReplaceAll(want, "NETNS", netns)
		if code != 0 || stderr != "" || canonical(t, out) != canonical(t, want) {
			t.Errorf("%s: exit code %d, stderr %q, printed\n%s\nwant\n%s", v, code, stderr,
				canonical(t, out), canonical(t, want))
		}
	}
}

func canonical(t *testing.T, s string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatalf("%v: %q", err, s)
	}
	return jsonOf(v)
}

// run executes the plugin as a runtime does and returns stdout, stderr and the exit code.
func run(t testing.TB, name string, environ []string, stdin string) (string, string, int) {
	t.Helper()
	cmd := exec.CommandContext(callContext(t), filepath.Join(binDir, name))
	cmd.Env = environ
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

func env(verb string) []string {
	return []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=" + netns,
		"CNI_PATH=" + binDir}
}

// wantPrinted checks that the plugin printed one CNI error, and nothing else.
func wantPrinted(t *testing.T, out string, exit int, code uint, parts ...string) {
	t.Helper()
	var e types.Error
	if err := json.Unmarshal([]byte(out), &e); err != nil || exit == 0 {
		t.Errorf("exit code %d, %v: %q", exit, err, out)
		return
	}
	wantError(t, wire.Response{Error: &e}, code, parts...)
}

// The other input: errors that a runtime, or a manual call, can make on the plugin's stdin and in its environment.
func TestBadCallsOfThePlugin(t *testing.T) {
	needNetns(t)
	h := &handler{}
	s := start(t, h, cniserver.Config{})
	good := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"n","type":"fairlead","cniSocket":%q}`, s.socket)
	without := func(name string) []string {
		return slices.DeleteFunc(env("ADD"), func(v string) bool { return strings.HasPrefix(v, name+"=") })
	}
	for name, c := range map[string]struct {
		env   []string
		stdin string
		code  uint
		says  []string
	}{
		"no stdin":          {env("ADD"), "", 6, []string{"unexpected end of JSON"}},
		"garbage":           {env("ADD"), "\x00\xffhello", 6, []string{"invalid character"}},
		"truncated":         {env("ADD"), good[:len(good)/2], 6, []string{"unexpected end of JSON"}},
		"a list":            {env("DEL"), "[]", 6, []string{"array"}},
		"null":              {env("ADD"), "null", 7, []string{"missing network name"}},
		"no name":           {env("ADD"), `{"cniVersion":"1.1.0","type":"fairlead"}`, 7, []string{"name"}},
		"name is a number":  {env("ADD"), `{"cniVersion":"1.1.0","name":1}`, 6, []string{"number"}},
		"socket is a list":  {env("ADD"), `{"cniVersion":"1.1.0","name":"n","cniSocket":[]}`, 7, []string{"cniSocket", "[]"}},
		"socket is empty":   {env("ADD"), `{"cniVersion":"1.1.0","name":"n","cniSocket":""}`, 7, []string{"cniSocket"}},
		"old version":       {env("ADD"), strings.Replace(good, "1.1.0", "0.2.0", 1), 1, []string{"0.2.0", "1.1.0"}},
		"unknown version":   {env("ADD"), strings.Replace(good, "1.1.0", "9", 1), 1, []string{`"9"`}},
		"version is a bool": {env("ADD"), strings.Replace(good, `"1.1.0"`, "true", 1), 6, []string{"bool"}},
		"huge": {env("ADD"), strings.Replace(good, "{", `{"pad":"`+strings.Repeat("x", 10<<20)+`",`, 1), 7,
			[]string{"too long", "4194304"}},
		"deep": {env("ADD"), strings.Replace(good, "{", `{"pad":`+strings.Repeat("[", 20000)+",", 1), 6,
			[]string{"depth"}},
		"no verb":        {without("CNI_COMMAND"), good, 4, []string{"CNI_COMMAND"}},
		"unknown verb":   {env("FROB"), good, 4, []string{"FROB"}},
		"no container":   {without("CNI_CONTAINERID"), good, 4, []string{"CNI_CONTAINERID"}},
		"no netns":       {without("CNI_NETNS"), good, 4, []string{"CNI_NETNS"}},
		"no interface":   {without("CNI_IFNAME"), good, 4, []string{"CNI_IFNAME"}},
		"own netns":      {append(env("ADD"), "CNI_NETNS=/proc/self/ns/net"), good, 8, []string{"the node's own"}},
		"bad args":       {append(env("ADD"), "CNI_ARGS=a=b=c"), good, 4, []string{"CNI_ARGS", "a=b=c"}},
		"bad characters": {append(env("ADD"), "CNI_CONTAINERID=\xff\n"), good, 4, []string{"containerID"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, stderr, exit := run(t, "fairlead", c.env, c.stdin)
			wantPrinted(t, out, exit, c.code, c.says...)
			if stderr != "" {
				t.Errorf("stderr: %s", stderr)
			}
		})
	}
	if len(h.calls()) != 0 {
		t.Errorf("the handler saw %+v", h.calls())
	}
	// The server is healthy, and a DEL with the node's own network namespace, which skel would reject, succeeds.
	out, _, exit := run(t, "fairlead", append(env("DEL"), "CNI_NETNS=/proc/self/ns/net"), good)
	if exit != 0 || out != "" {
		t.Errorf("DEL: exit code %d, printed %q", exit, out)
	}
}

// The plugin's name does not matter.
func TestInstalledAsAntrea(t *testing.T) {
	needNetns(t)
	s := start(t, &handler{}, cniserver.Config{})
	link := filepath.Join(binDir, "antrea")
	if err := os.Link(filepath.Join(binDir, "fairlead"), link); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(link)
	out, _, exit := run(t, "antrea", env("ADD"), fmt.Sprintf(`{"cniVersion":"0.3.0","name":"antrea","type":"antrea",
		"ipam":{"type":"host-local"},"cniSocket":%q}`, s.socket))
	if exit != 0 || !strings.Contains(out, "10.1.0.7/24") {
		t.Errorf("exit code %d: %s", exit, out)
	}
}

// The runtime's time limit kills the plugin during an ADD; its DEL then waits until the ADD is over.
func TestPluginIsKilled(t *testing.T) {
	needNetns(t)
	var mu sync.Mutex
	var order []string
	note := func(s string) { mu.Lock(); defer mu.Unlock(); order = append(order, s) }
	h := &handler{
		add: func(ctx context.Context, _ cniserver.Request) (cniserver.Result, error) {
			note("add")
			<-ctx.Done()
			time.Sleep(20 * time.Millisecond) // the roll-back
			note("rolled back")
			return cniserver.Result{}, ctx.Err()
		},
		del: func(context.Context, cniserver.Request) error { note("del"); return nil },
	}
	s := start(t, h, cniserver.Config{})
	rt := newRuntime(t, s.socket, "1.1.0")
	ctx, kill := context.WithCancel(context.Background())
	defer kill()
	added := make(chan error, 1)
	go func() {
		_, err := rt.cni.AddNetworkList(ctx, rt.list, container1("c1"))
		added <- err
	}()
	eventually(t, "the ADD runs", func() bool { return len(h.calls()) == 1 })
	kill()
	if err := receiveWithin(t, "libcni gives up", added); err == nil {
		t.Error("the ADD succeeded")
	}
	if err := rt.cni.DelNetworkList(callContext(t), rt.list, container1("c1")); err != nil {
		t.Error(err)
	}
	if fmt.Sprint(order) != "[add rolled back del]" {
		t.Errorf("%v", order)
	}
}

func TestManyPodsThroughLibCNI(t *testing.T) {
	needNetns(t)
	h := &handler{}
	s := start(t, h, cniserver.Config{})
	rt, ctx := newRuntime(t, s.socket, "1.1.0"), callContext(t)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			id := container1(fmt.Sprint("c", i))
			if _, err := rt.cni.AddNetworkList(ctx, rt.list, id); err != nil {
				t.Error(err)
			}
			if err := rt.cni.DelNetworkList(ctx, rt.list, id); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(h.calls()); n != 64 {
		t.Errorf("%d calls", n)
	}
}

// BenchmarkPlugin measures the CNI protocol's share of an ADD: the plugin's process, the socket and the server.
func BenchmarkPlugin(b *testing.B) {
	needNetns(b)
	s := start(b, &handler{}, cniserver.Config{})
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"n","type":"fairlead","cniSocket":%q}`, s.socket)
	for b.Loop() {
		if out, _, exit := run(b, "fairlead", env("ADD"), conf); exit != 0 {
			b.Fatal(out)
		}
	}
}
