package sandbox

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
)

func TestRecords(t *testing.T) {
	rs := OpenRecords(t.TempDir())
	if r, err := rs.Load("shop/web"); r != nil || err != nil {
		t.Errorf("a record that is not there: %v, %v", r, err)
	}
	a := &Record{Namespace: "shop", Name: "web", Node: "node1", State: Running, Since: time.Unix(1, 0).UTC(), Attempt: 2,
		ContainerID: "id", IPs: []string{"10.0.0.2"}, Capabilities: map[string]any{"a": "b"}}
	b := &Record{Namespace: "a", Name: "x.y-z", Node: "node1", State: Waiting}
	for range 2 {
		for _, r := range []*Record{a, b} {
			if err := rs.Save(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, err := rs.Load("shop/web"); err != nil || !reflect.DeepEqual(got, a) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, a)
	}
	unlock, err := rs.Lock("shop/web") // a lock file is not a record
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if all, err := rs.List(); err != nil || len(all) != 2 || all[0].Pod() != "a/x.y-z" || all[1].Pod() != "shop/web" {
		t.Errorf("list: %v, %v", all, err)
	}
	for range 2 {
		if err := rs.Forget("shop/web"); err != nil {
			t.Error(err)
		}
	}
	if all, err := rs.List(); err != nil || len(all) != 1 {
		t.Errorf("after Forget: %v, %v", all, err)
	}
}

func TestLockExcludes(t *testing.T) {
	rs := OpenRecords(t.TempDir())
	unlock, err := rs.Lock("a/b")
	if err != nil {
		t.Fatal(err)
	}
	other, err := rs.Lock("a/c") // of another pod
	if err != nil {
		t.Fatal(err)
	}
	other()
	got := make(chan struct{})
	go func() {
		second, err := rs.Lock("a/b")
		if err == nil {
			second()
		}
		close(got)
	}()
	select {
	case <-got:
		t.Error("the lock was given twice")
	case <-time.After(50 * time.Millisecond):
	}
	unlock()
	select {
	case <-got:
	case <-time.After(time.Minute):
		t.Error("the lock was not given after unlock")
	}
}

func TestCapabilities(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "1M"}
	pod.Spec.Containers = []corev1.Container{
		{Ports: []corev1.ContainerPort{{HostPort: 53, ContainerPort: 5353, Protocol: "UDP"}, {ContainerPort: 80}}},
		{Ports: []corev1.ContainerPort{{HostPort: 80, ContainerPort: 8080, HostIP: "192.0.2.1"}}},
	}
	args, err := capabilities(pod)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(args)
	want := `{"bandwidth":{"ingressRate":1000000,"ingressBurst":4294967295},"portMappings":[` +
		`{"hostPort":53,"containerPort":5353,"protocol":"udp"},` +
		`{"hostPort":80,"containerPort":8080,"protocol":"tcp","hostIP":"192.0.2.1"}]}`
	if err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
	for _, bad := range []string{"fast", "", "-1", "0"} {
		pod.Annotations["kubernetes.io/egress-bandwidth"] = bad
		if args, err := capabilities(pod); err == nil || !strings.Contains(err.Error(), "egress-bandwidth") {
			t.Errorf("rate %q gave %v, %v", bad, args, err)
		}
	}
}

func TestPrinted(t *testing.T) {
	for want, err := range map[string]error{
		"": nil, "plain\n": errors.New("plain"),
		"{\n    \"code\": 11,\n    \"msg\": \"later\"\n}\n": errors.Join(&types.Error{Code: 11, Msg: "later"}, nil),
	} {
		if got := Printed(nil, err); got != want {
			t.Errorf("%v is printed as %q, want %q", err, got, want)
		}
	}
}

func TestHasVariable(t *testing.T) {
	environ, err := os.ReadFile("/proc/self/environ")
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(environ), "\x00")
	if !hasVariable(environ, first) || hasVariable(environ, first+"x") || hasVariable(environ, first[1:]) {
		t.Errorf("%q is not found as it should be", first)
	}
}
