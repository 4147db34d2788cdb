package cniserver

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver/wire"
)

type yes struct{}

func (yes) Add(context.Context, Request) (Result, error) {
	return Result{HostIf: "fl1", MAC: api.MAC{2}, Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.7/24")},
		Gateways: []netip.Addr{netip.MustParseAddr("10.1.0.1")}}, nil
}
func (yes) Del(context.Context, Request) error               { return nil }
func (yes) Check(context.Context, Request) error             { return nil }
func (yes) GC(context.Context, string, []AttachmentID) error { return nil }
func (yes) Status(context.Context) error                     { return nil }

// FuzzRequest: any line is answered with a result or a code of our list, never
// with a panic, and no error has a stack.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"command":"ADD","containerID":"c1","netns":"/proc/1/ns/net","ifName":"eth0","args":"K8S_POD_NAME=a","config":{}}`,
		`{"command":"DEL","containerID":"c1","ifName":"eth0","config":{"cniVersion":"1.1.0","name":"n","type":"fairlead"}}`,
		`{"command":"CHECK","containerID":"c1","ifName":"eth0","netns":"/proc/self/ns/mnt","config":{"cniVersion":"0.4.0",` +
			`"name":"n","type":"antrea","prevResult":{"interfaces":[{"name":"eth0","sandbox":"x"}],"ips":[null]}}}`,
		`{"command":"GC","config":{"cniVersion":"1.1.0","name":"n","type":"fairlead","cni.dev/valid-attachments":null}}`,
		`{"command":"STATUS","config":{"cniVersion":"1.1.0","name":"n","type":"x","ipam":{"type":"antrea"}}}`,
		`null`, `[]`, ``,
	} {
		f.Add(seed)
	}
	s := &Server{cfg: Config{Handler: yes{}, Log: logr.Discard(), Observe: func(string, string, float64) {},
		CallWait: time.Second, GCWait: time.Second}}
	f.Fuzz(func(t *testing.T, line string) {
		r := s.answer(context.Background(), time.Now(), []byte(line))
		if r.Error == nil {
			return
		}
		e := r.Error
		if e.Code == 0 || e.Code == CodeInternal || e.Msg == "" || strings.Contains(e.Msg, "goroutine") {
			t.Errorf("%q: %d %q", line, e.Code, e.Msg)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Error(err)
		}
	})
}

// FuzzArgs: what is accepted as a pod's name can stand in a log line, an
// external_ids value and "namespace/name".
func FuzzArgs(f *testing.F) {
	for _, seed := range []string{"", ";", "=", "a=b=c",
		"IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=c",
		"CommonArgs=1", "IgnoreUnknown=maybe", "K8S_POD_NAME=\n;K8S_POD_NAMESPACE=x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, args string) {
		a, err := parseArgs(args)
		if err != nil {
			if a != (podArgs{}) {
				t.Errorf("%q: an error and %+v", args, a)
			}
			return
		}
		for _, v := range []string{string(a.K8S_POD_NAMESPACE), string(a.K8S_POD_NAME), string(a.K8S_POD_UID)} {
			if strings.ContainsAny(v, "/ \t\r\n\"\\=;,") {
				t.Errorf("%q: accepted %q", args, v)
			}
		}
	})
}

// FuzzNetConf: a configuration that an ADD is allowed with gives a result that
// says its version.
func FuzzNetConf(f *testing.F) {
	for _, seed := range []string{
		`{"cniVersion":"1.1.0","name":"n","type":"fairlead"}`,
		`{"cniVersion":"0.3.0","name":"n","type":"antrea","ipam":{"type":"host-local"},"dns":{"nameservers":["1.1.1.1"]}}`,
		`{"cniVersion":"1.0.0","name":"n","type":"fairlead","prevResult":null,"ipam":null,"dns":null}`,
		`{"cniVersion":"1.0.0","name":"n","type":"fairlead","prevResult":{"ips":[{"interface":-1,"address":"::1/128"}]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, config []byte) {
		conf, err := parseNetConf(config)
		if err != nil {
			return
		}
		conf.prevResult("eth0")
		conf.validAttachments()
		conf.role()
		version, err := conf.cniVersion("ADD")
		if err != nil {
			return
		}
		dns, err := conf.dns()
		if err != nil {
			return
		}
		made, _ := yes{}.Add(context.Background(), Request{})
		out, err := (&call{cniVersion: version, dns: dns}).encodeResult(made)
		if err != nil || !strings.Contains(string(out), version) {
			t.Errorf("%s: %s, %v", config, out, err)
		}
		if len(out) > wire.MaxResponse+len(config)*6 {
			t.Errorf("%d bytes", len(out))
		}
	})
}
