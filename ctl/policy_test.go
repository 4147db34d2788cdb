package ctl

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/diagnose/verdict"
	"github.com/fairlead-cni/fairlead/policy"
)

func TestParseQuery(t *testing.T) {
	pod := func(name string) connectionEnd {
		return connectionEnd{pod: policy.PodKey{Namespace: "shop", Name: name}}
	}
	addr := connectionEnd{addr: netip.MustParseAddr("fd00::1")}
	for text, want := range map[string]connQuery{
		"shop/web shop/db:5432":     {pod("web"), pod("db"), policy.TCP, 5432},
		"shop/web shop/db:53/UDP":   {pod("web"), pod("db"), policy.UDP, 53},
		"shop/web shop/db:1/SCTP":   {pod("web"), pod("db"), policy.SCTP, 1},
		"shop/web shop/db":          {pod("web"), pod("db"), 0, 0},
		"shop/web [fd00::1]:80/TCP": {pod("web"), addr, policy.TCP, 80},
		"fd00::1 shop/db:80":        {addr, pod("db"), policy.TCP, 80},
		"shop/web fd00::1":          {pod("web"), addr, 0, 0},
	} {
		from, to, _ := strings.Cut(text, " ")
		if got, err := parseConnQuery(from, to); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, to := range []string{"shop/db:http", "shop/db:0", "shop/db:70000", "shop/db:53/UDPx"} {
		if got, err := parseConnQuery("shop/web", to); err == nil {
			t.Errorf("%s: %+v and no error", to, got)
		}
	}
}

// The rules that allow or deny are named, and those that nearly match.
func TestExplainPolicies(t *testing.T) {
	doc := `{"metadata": {"namespace": "shop", "name": "db"}, "spec": {"podSelector": {"matchLabels": {"app": "db"}},
		"ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": 5432}]}]}}`
	p, err := policy.ParseNetworkPolicy([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	pod := func(name, ip string) corev1.Pod {
		meta := metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": name}}
		ips := []corev1.PodIP{{IP: ip}, {IP: "fd00::" + ip[len(ip)-1:]}}
		return corev1.Pod{ObjectMeta: meta, Status: corev1.PodStatus{PodIP: ip, PodIPs: ips}}
	}
	for text, want := range map[string]struct {
		allowed bool
		why     string
	}{
		"shop/web shop/db:5432":   {true, "ingress of shop/db: ingress[0] of NetworkPolicy shop/db accepts it"},
		"shop/web shop/db:80":     {false, "ingress[0] of NetworkPolicy shop/db accepts this peer, but only to 5432/TCP"},
		"shop/other shop/db:5432": {false, "ingress[0] of NetworkPolicy shop/db accepts this port, but not the peer 10.0.0.3"},
		"192.0.2.1 shop/db:1/UDP": {false, "ingress of shop/db: isolated by NetworkPolicy shop/db, and no rule accepts it"},
		"shop/db shop/web:80": {true,
			"ingress of shop/web: no policy isolates the pod, and no rule matches the connection: accepted"},
	} {
		from, to, _ := strings.Cut(text, " ")
		parsed, err := parseConnQuery(from, to)
		if err != nil {
			t.Fatal(err)
		}
		q := question{parsed, verdict.New([]corev1.Pod{pod("web", "10.0.0.1"), pod("db", "10.0.0.2"), pod("other", "10.0.0.3")},
			parsed.isEnd)}
		q.Compiler.SetNamespace(policy.Namespace{Name: "shop"})
		q.SetPolicy(p)
		if a, err := q.answer(); err != nil || a.Allowed != want.allowed || !slices.Contains(a.Why, want.why) {
			t.Errorf("%s: %+v, %v; want %+v", text, a, err, want)
		} else if why := slices.Compact(slices.Sorted(slices.Values(a.Why))); len(why) != len(a.Why) {
			t.Errorf("%s: both families have said %v", text, a.Why)
		}
	}
}

// The policies that apply to a pod are listed by direction, with each rule's peers and ports.
func TestShowPolicies(t *testing.T) {
	doc := `{"metadata": {"namespace": "shop", "name": "db"}, "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [
		{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": 5432}, {"port": 53, "protocol": "UDP"}]},
		{"from": [{"ipBlock": {"cidr": "10.1.0.0/16", "except": ["10.1.2.0/24"]}}]}]}}`
	p, err := policy.ParseNetworkPolicy([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	db := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", Labels: map[string]string{"app": "db"}},
		Status: corev1.PodStatus{PodIP: "10.0.0.2"}}
	about := connQuery{from: parseEnd("shop/db")}
	q := question{about, verdict.New([]corev1.Pod{db}, about.isEnd)}
	q.Compiler.SetNamespace(policy.Namespace{Name: "shop"})
	q.SetPolicy(p)
	shown, err := q.show()
	if err != nil {
		t.Fatal(err)
	}
	want := []directionPolicies{
		{"ingress", []string{"NetworkPolicy shop/db"}, []string{
			"ingress[0] of NetworkPolicy shop/db: Accept from pods {app=web} of namespace shop, 5432/TCP, 53/UDP",
			"ingress[1] of NetworkPolicy shop/db: Accept from networks 10.1.0.0/16 -10.1.2.0/24, any port"}},
		{"egress", []string{}, []string{}},
	}
	if !reflect.DeepEqual(shown.Directions, want) || !slices.Equal(shown.Addresses, []string{"10.0.0.2"}) {
		t.Errorf("%+v\nwant %+v", shown, want)
	}
	if _, err := (question{connQuery{from: parseEnd("shop/none")}, q.Cluster}).show(); err == nil {
		t.Error("a pod that does not exist has policies")
	}
}
