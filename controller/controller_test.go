package controller

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/apitest"
)

// silent are options whose API server accepts connections and never replies, and whose port is in use.
func silent(t *testing.T) (Options, net.Listener) {
	t.Helper()
	port, err := apitest.FreePort() // not reused for clients once it is free
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	server := &rest.Config{Host: "http://" + l.Addr().String()}
	client, err := dynamic.NewForConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	typed, err := kubernetes.NewForConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	return Options{Client: client, Kubernetes: typed, Log: logr.Discard(), Intervals: short(),
		Config: api.ControllerConfig{
			APIAddress: netip.MustParseAddr("127.0.0.1"), APIPort: port}}, l
}

// A port in use by another process ends the controller at once, even if the API server does not answer.
func TestPortInUse(t *testing.T) {
	o, _ := silent(t)
	err := Run(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "address already in use (change apiAddress or apiPort)") {
		t.Errorf("got %v", err)
	}
}

// Of two controllers on one node one has the port. Each serves its own socket, and the other takes over the port when
// it is released.
func TestTwoOnOneNode(t *testing.T) {
	o, l := silent(t)
	dir := t.TempDir()
	if err := Query(t.Context(), filepath.Join(dir, "a"), "healthz"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("no server: %v", err)
	}
	ended := make(chan error, 2)
	ctx, stop := context.WithCancel(t.Context())
	for _, name := range []string{"a", "b"} {
		o.HealthSocket = filepath.Join(dir, name)
		if name == "b" { // a stale socket of a controller that was killed
			if old, err := net.Listen("unix", o.HealthSocket); err == nil {
				old.(*net.UnixListener).SetUnlinkOnClose(false)
				old.Close()
			}
		}
		go func() { ended <- Run(ctx, o) }()
		await(t, func() error { return Query(t.Context(), o.HealthSocket, "healthz") })
		if err := Query(t.Context(), o.HealthSocket, "readyz"); err == nil || err.Error() != "caches are not synced with the API server yet" {
			t.Errorf("%s is ready, and the API server says nothing: %v", name, err)
		}
	}
	at := "http://" + l.Addr().String() + "/metrics"
	l.Close()
	await(t, func() error {
		answer, err := http.Get(at)
		if err == nil {
			answer.Body.Close()
		}
		return err
	})
	stop()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// short are intervals for fast tests. The Lease is as long as in production: with a shorter one, a leader that a busy
// machine keeps from renewing it for a second would lose it.
func short() api.ControllerIntervals {
	return api.ControllerIntervals{Pass: 20 * time.Millisecond, PassAtLeast: 100 * time.Millisecond,
		Sets: 5 * time.Millisecond, SetsAtLeast: 100 * time.Millisecond, Keepers: 100 * time.Millisecond,
		OtherAllocator: 100 * time.Millisecond, Services: time.Minute, Port: 20 * time.Millisecond,
		LeaseDuration: 15 * time.Second, LeaseRenew: 10 * time.Second, LeaseRetry: 50 * time.Millisecond}
}

// await retries until try succeeds or the deadline passes.
func await(t *testing.T, try func() error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// The error names the resource that cannot be listed, and the remedy, and client-go can still unwrap it.
func TestUnlisted(t *testing.T) {
	err := unlisted(api.PoolResource, apierrors.NewNotFound(api.PoolResource.GroupResource(), ""))
	want := "the resource ippools.crd.antrea.io is not installed: kubectl apply -f build/manifests/fairlead.yaml " +
		"-l app.kubernetes.io/component=crds"
	if !strings.Contains(err.Error(), want) || !apierrors.IsNotFound(err) {
		t.Errorf("without the definitions: %v", err)
	}
	err = unlisted(nodes, apierrors.NewResourceExpired("too old"))
	if !strings.Contains(err.Error(), "listing nodes: too old") || !apierrors.IsResourceExpired(err) {
		t.Errorf("an old version: %v", err)
	}
}
