package inforce

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/agent/services"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// The endpoints in the API and in Open vSwitch may differ.
func TestFill(t *testing.T) {
	a, b, c := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80"), netip.MustParseAddrPort("10.0.0.3:80")
	known := []services.Endpoint{{To: a}, {To: b, Why: "not ready"}}
	for _, one := range []struct {
		has        []netip.AddrPort
		translated bool
		want       string
	}{
		{[]netip.AddrPort{a}, true, "10.0.0.1:80 true , 10.0.0.2:80 false not ready"},
		{nil, true, "10.0.0.1:80 false Open vSwitch does not have it (is the agent ready? fairleadctl doctor agent), 10.0.0.2:80 false not ready"},
		{nil, false, "10.0.0.1:80 true , 10.0.0.2:80 false not ready"},
		{[]netip.AddrPort{a, b, c}, true, "10.0.0.1:80 true , 10.0.0.2:80 true , 10.0.0.3:80 true the Kubernetes API no longer has it"},
	} {
		var p Port
		p.fill(known, one.has, one.translated)
		var got []string
		for _, e := range p.Endpoints {
			got = append(got, strings.Join([]string{e.Endpoint.String(), map[bool]string{true: "true", false: "false"}[e.InForce], e.Why}, " "))
		}
		if text := strings.Join(got, ", "); text != one.want {
			t.Errorf("%v: got %q, want %q", one.has, text, one.want)
		}
	}
}

// A port without endpoints gives the reason.
func TestWhyNone(t *testing.T) {
	plain := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "db"}}
	selecting := plain.DeepCopy()
	selecting.Spec.Selector = map[string]string{"app": "db"}
	some := []inputs.EndpointSlice{{Endpoints: []inputs.Endpoint{{}}}}
	for _, one := range []struct {
		svc    *corev1.Service
		slices []inputs.EndpointSlice
		port   Port
		want   string
	}{
		{selecting, nil, Port{}, "no running Pod has the labels of its selector, app=db"},
		{plain, nil, Port{}, "no EndpointSlice with endpoints has the label kubernetes.io/service-name=db"},
		{selecting, some, Port{Name: "sql"}, `has its port (named "sql")`},
		{selecting, some, Port{Protocol: "SCTP"}, "SCTP is left to kube-proxy"},
		{selecting, some, Port{Endpoints: []Endpoint{{Why: "not ready"}}}, "its endpoint is not in force"},
		{selecting, some, Port{Endpoints: []Endpoint{{InForce: true}}}, ""},
	} {
		one.port.explain(one.svc, one.slices)
		if one.want == "" && one.port.Why != "" || !strings.Contains(one.port.Why, one.want) {
			t.Errorf("%+v: want %q", one.port, one.want)
		}
	}
	p := Port{Why: "its endpoint is not in force", Endpoints: []Endpoint{{Endpoint: netip.MustParseAddrPort("10.0.0.1:80"), Why: "not ready"}}}
	if got := p.WhyNone(); got != "its endpoint is not in force: 10.0.0.1:80 is not ready" {
		t.Error(got)
	}
}

// A session affinity that Open vSwitch cuts short is noted.
func TestNote(t *testing.T) {
	s := inputs.Service{ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Affinity: 24 * time.Hour}
	if got := serviceNote(s, true); !strings.Contains(got, "set to last 24h0m0s, but lasts 18h12m15s") {
		t.Errorf("cut: %q", got)
	}
	if got := serviceNote(s, false); !strings.Contains(got, "kube-proxy translates") {
		t.Errorf("services: host: %q", got)
	}
	if s.Affinity = 3 * time.Hour; serviceNote(s, true) != "" {
		t.Errorf("not cut: %q", serviceNote(s, true))
	}
}
