package cniserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/cniserver/wire"
)

func TestHandlerGetsWhatTheRuntimeSaid(t *testing.T) {
	needNetns(t)
	h := &handler{}
	s := start(t, h, cniserver.Config{})
	want := cniserver.Request{ContainerID: "c1", IfName: "eth0", Netns: netns, Network: "fairlead",
		PodNamespace: "shop", PodName: "web-0", PodUID: "u-1"}
	wantSuccess(t, ask(t, s.socket, request("ADD")))
	wantSuccess(t, ask(t, s.socket, request("CHECK", config(`{"cniVersion":"1.0.0","name":"net2","type":"antrea",
		"ipam":{"type":"host-local"},"prevResult":{"cniVersion":"1.0.0",
		"interfaces":[{"name":"fl1"},{"name":"eth0","mac":"02:00:00:00:00:07","sandbox":"x"},{"name":"eth1","sandbox":"x"}],
		"ips":[{"interface":1,"address":"10.1.0.7/24"},{"interface":2,"address":"10.9.0.7/24"},
		{"address":"fd00::7/64"}]}}`))))
	wantSuccess(t, ask(t, s.socket, request("DEL")))

	checked := want
	checked.Network = "net2"
	checked.PrevMAC = api.MAC{2, 0, 0, 0, 0, 7}
	checked.PrevAddrs = []netip.Prefix{netip.MustParsePrefix("10.1.0.7/24"), netip.MustParsePrefix("fd00::7/64")}
	got := h.calls()
	for i, w := range []cniserver.Request{want, checked, want} {
		if i >= len(got) || !equal(got[i], w) {
			t.Fatalf("call %d of %+v, want %+v", i, got, w)
		}
	}
	eventually(t, "the calls are observed", func() bool { return s.obs.String() == "ADD 0\nCHECK 0\nDEL 0\n" })
}

func equal(a, b cniserver.Request) bool {
	same := slices.Equal(a.PrevAddrs, b.PrevAddrs)
	a.PrevAddrs, b.PrevAddrs = nil, nil
	return same && jsonOf(a) == jsonOf(b)
}

func jsonOf(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// Each row is a request that must fail before it reaches the handler, with a code of the spec and a message that says
// what is wrong.
func TestRequestsRefused(t *testing.T) {
	needNetns(t)
	h := &handler{}
	s := start(t, h, cniserver.Config{})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const prev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[
		{"name":"eth0","mac":"02:00:00:00:00:07","sandbox":"x"}]`
	for name, c := range map[string]struct {
		r    wire.Request
		code uint
		says []string
	}{
		"no verb":      {request(""), types.ErrInvalidEnvironmentVariables, []string{"CNI_COMMAND", `""`, "STATUS"}},
		"unknown verb": {request("FROB"), types.ErrInvalidEnvironmentVariables, []string{"CNI_COMMAND", `"FROB"`}},
		"VERSION":      {request("VERSION"), types.ErrInvalidEnvironmentVariables, []string{`"VERSION"`}},

		"no container ID": {request("ADD", container("")), 4, []string{"CNI_CONTAINERID", "missing"}},
		"container ID":    {request("DEL", container("a/b")), 4, []string{"CNI_CONTAINERID", `"a/b"`, "invalid characters"}},
		"no interface":    {request("ADD", func(r *wire.Request) { r.IfName = "" }), 4, []string{"CNI_IFNAME", "empty"}},
		"long interface": {request("DEL", func(r *wire.Request) { r.IfName = "eth0123456789abc" }), 4,
			[]string{"CNI_IFNAME", "eth0123456789abc", "too long"}},
		"interface with a slash": {request("CHECK", func(r *wire.Request) { r.IfName = "a/b" }, config(`{"cniVersion":"1.1.0",
			"name":"n","type":"fairlead",%s}}`, prev)), 4, []string{"CNI_IFNAME"}},

		"no netns":       {request("ADD", inNetns("")), 8, []string{"CNI_NETNS", "not an absolute path"}},
		"relative netns": {request("ADD", inNetns("run/netns/x")), 8, []string{`"run/netns/x"`, "not an absolute path"}},
		"missing netns": {request("ADD", inNetns("/run/netns/nope")), 8,
			[]string{"/run/netns/nope", "no such file", "mount"}},
		"netns is a file": {request("ADD", inNetns(file)), 8, []string{file, "not a network namespace"}},
		"netns is of another kind": {request("ADD", inNetns("/proc/self/ns/mnt")), 8, []string{"/proc/self/ns/mnt",
			"a namespace, but not a network namespace: the container runtime must pass the pod's network namespace"}},
		"own netns": {request("ADD", inNetns("/proc/self/ns/net")), 8, []string{"the node's own network namespace"}},

		"args":                  {request("ADD", args("K8S_POD_NAME")), 4, []string{"CNI_ARGS", "K8S_POD_NAME"}},
		"unknown args":          {request("ADD", args("COLOUR=red")), 4, []string{"CNI_ARGS", "unknown", "COLOUR=red"}},
		"pod without namespace": {request("ADD", args("K8S_POD_NAME=web-0")), 4, []string{"CNI_ARGS", "together"}},
		"pod name": {request("ADD", args("K8S_POD_NAME=a/b;K8S_POD_NAMESPACE=c")), 4,
			[]string{`"a/b" is not a valid Kubernetes name`}},
		"long pod name": {request("ADD", args("K8S_POD_NAMESPACE=c;K8S_POD_NAME="+strings.Repeat("x", 254))), 4,
			[]string{"is not a valid Kubernetes name"}},

		"no configuration": {request("ADD", func(r *wire.Request) { r.Config = json.RawMessage("null") }), 6,
			[]string{"network configuration", "not a JSON object"}},
		"configuration is a list": {request("ADD", config(`[1]`)), 6, []string{"network configuration", "array"}},
		"no version": {request("ADD", config(`{"name":"n","type":"fairlead"}`)), 1,
			[]string{`"0.1.0" is not supported`}},
		"old version": {request("ADD", config(`{"cniVersion":"0.2.0","name":"n","type":"fairlead"}`)), 1,
			[]string{`"0.2.0" is not supported`, "0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"}},
		"new version": {request("DEL", config(`{"cniVersion":"1.2.0","name":"n","type":"fairlead"}`)), 1,
			[]string{`"1.2.0"`}},
		"version is a number": {request("ADD", config(`{"cniVersion":1.1,"name":"n","type":"fairlead"}`)), 6,
			[]string{`"cniVersion"`, "number", "string"}},
		"CHECK before 0.4.0": {request("CHECK", config(`{"cniVersion":"0.3.1","name":"n","type":"fairlead"}`)), 1,
			[]string{"CHECK has CNI version 0.4.0", `"0.3.1"`}},
		"GC before 1.1.0": {request("GC", config(`{"cniVersion":"1.0.0","name":"n","type":"fairlead",
			"cni.dev/valid-attachments":[]}`)), 1, []string{"GC has CNI version 1.1.0"}},
		"STATUS before 1.1.0": {request("STATUS", config(`{"cniVersion":"1.0.0","name":"n","type":"fairlead"}`)), 1,
			[]string{"STATUS has CNI version 1.1.0"}},
		"no name":  {request("ADD", config(`{"cniVersion":"1.1.0","type":"fairlead"}`)), 7, []string{"network name"}},
		"bad name": {request("DEL", config(`{"cniVersion":"1.1.0","name":"a/b","type":"fairlead"}`)), 7, []string{"a/b"}},
		"name is a number": {request("ADD", config(`{"cniVersion":"1.1.0","name":5,"type":"fairlead"}`)), 6,
			[]string{`"name"`, "number"}},
		"another type": {request("ADD", with(`"type":"bridge"`)), 7, []string{`"bridge"`}},
		"no type":      {request("STATUS", config(`{"cniVersion":"1.1.0","name":"n"}`)), 7, []string{`type is ""`}},
		"type is a list": {request("ADD", with(`"type":[]`)), 6,
			[]string{`"type"`, "array", "string"}},
		"another ipam": {request("ADD", with(`"type":"fairlead","ipam":{"type":"whereabouts"}`)),
			2, []string{"ipam.type", `"whereabouts"`, "Remove"}},
		"ipam is a string": {request("ADD", with(`"type":"fairlead","ipam":"host-local"`)),
			6, []string{`"ipam"`, "string"}},
		"ipam type is a number": {request("ADD", with(`"type":"fairlead","ipam":{"type":1}`)),
			6, []string{`"ipam"`, "key Type", "number", "string"}},
		"second in the chain": {request("ADD", with(`"type":"fairlead",`+prev+`}`)), 7,
			[]string{"prevResult", "must be the first plugin"}},
		"dns is a list": {request("ADD", with(`"type":"fairlead","dns":[]`)), 6,
			[]string{`"dns"`, "array"}},

		"CHECK without prevResult": {request("CHECK"), 7, []string{"CHECK without prevResult"}},
		"prevResult null": {request("CHECK", with(`"type":"fairlead","prevResult":null`)), 7,
			[]string{"CHECK without prevResult"}},
		"prevResult is a string": {request("CHECK", with(`"type":"fairlead","prevResult":""`)),
			6, []string{"prevResult", "string"}},
		"prevResult of another interface": {request("CHECK", func(r *wire.Request) { r.IfName = "eth7" },
			with(`"type":"fairlead",`+prev+`}`)), 7, []string{"no interface eth7"}},
		"prevResult with a bad MAC": {request("CHECK", with(`"type":"fairlead",
			"prevResult":{"interfaces":[null,{"name":"eth0","mac":"zz","sandbox":"x"}]}`)), 7, []string{"zz"}},
		"prevResult with a bad address": {request("CHECK", with(`"type":"fairlead",`+prev+`,"ips":[null]}`)), 7,
			[]string{"address"}},

		"GC without a list": {request("GC", with(`"type":"fairlead"`)), 7,
			[]string{"cni.dev/valid-attachments", "nothing was removed"}},
		"GC with a bad list": {request("GC", with(`"type":"fairlead",
			"cni.dev/valid-attachments":{}`)), 6, []string{"cni.dev/valid-attachments", "object"}},
		"GC with half an entry": {request("GC", with(`"type":"fairlead",
			"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"},{"containerID":"b"}]`)), 7,
			[]string{"entry 1", "nothing was removed"}},
	} {
		t.Run(name, func(t *testing.T) { wantError(t, ask(t, s.socket, c.r), c.code, c.says...) })
	}
	if calls := h.calls(); len(calls) != 0 {
		t.Errorf("the handler was called: %+v", calls)
	}
}

// with is a configuration of version 1.1.0 with additional keys.
func with(keys string) func(*wire.Request) {
	return config(`{"cniVersion":"1.1.0","name":"n",%s}`, keys)
}

func inNetns(path string) func(*wire.Request) { return func(r *wire.Request) { r.Netns = path } }
func args(a string) func(*wire.Request)       { return func(r *wire.Request) { r.Args = a } }

// What must not prevent an ADD.
func TestRequestsAccepted(t *testing.T) {
	needNetns(t)
	for name, edit := range map[string]func(*wire.Request){
		"unknown keys": with(`"type":"fairlead","colour":7,"args":{"cni":[]},
			"runtimeConfig":{"mac":"x"},"capabilities":{"bandwidth":true},"dns":{"nameservers":["1.1.1.1"]}`),
		"ipam fairlead":   with(`"type":"fairlead","ipam":{"type":"fairlead"}`),
		"ipam antrea":     config(`{"cniVersion":"0.3.0","name":"antrea","type":"antrea","ipam":{"type":"antrea"}}`),
		"ipam host-local": config(`{"cniVersion":"0.3.0","name":"antrea","type":"antrea","ipam":{"type":"host-local"}}`),
		"ipam null":       config(`{"cniVersion":"1.0.0","name":"n","type":"fairlead","ipam":null,"prevResult":null}`),
		"no args":         args(""),
		"podman":          args("IgnoreUnknown=1;K8S_POD_NAME=x-1;K8S_POD_NAMESPACE=y"),
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, &handler{}, cniserver.Config{})
			wantSuccess(t, ask(t, s.socket, request("ADD", edit)))
		})
	}
}

// A DEL cleans up whatever has become of the configuration and the arguments.
func TestDelAsksForLittle(t *testing.T) {
	for name, edit := range map[string]func(*wire.Request){
		"no netns":         inNetns(""),
		"netns is gone":    inNetns("/run/netns/gone"),
		"the node's netns": inNetns("/proc/self/ns/net"),
		"bad args":         args("a=b=c;;"),
		"second in chain":  with(`"type":"fairlead","prevResult":"nonsense","dns":4`),
		"another ipam":     with(`"type":"fairlead","ipam":{"type":"whereabouts"}`),
		"ipam is a list":   with(`"type":"antrea","ipam":[]`),
	} {
		t.Run(name, func(t *testing.T) {
			h := &handler{}
			s := start(t, h, cniserver.Config{})
			wantSuccess(t, ask(t, s.socket, request("DEL", edit)))
			if len(h.calls()) != 1 {
				t.Error("the handler was not called")
			}
		})
	}
}

// These networks are not Fairlead's: no ADD succeeds, so there is nothing to undo, and an error would make the runtime
// retry for ever. What another network created for the same container must stay.
func TestNothingToUndo(t *testing.T) {
	const conf = `{"cniVersion":"1.1.0","name":"n","type":"bridge"}`
	for _, verb := range []string{"DEL", "GC"} {
		h := &handler{gc: func(context.Context, string, []cniserver.AttachmentID) error { return errors.New("called") }}
		a := &addresses{}
		s := start(t, h, cniserver.Config{IPAM: a})
		wantSuccess(t, ask(t, s.socket, request(verb, config(conf))))
		if len(h.calls()) != 0 || len(a.calls()) != 0 {
			t.Errorf("%s with %s reached the handler", verb, conf)
		}
	}
}
