package controller

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/api"
)

// A port that somebody else has ends the controller at once, whatever the API server does.
func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	// A server that takes connections and says nothing.
	silent := &rest.Config{Host: "http://" + l.Addr().String()}
	client, err := dynamic.NewForConfig(silent)
	if err != nil {
		t.Fatal(err)
	}
	typed, err := kubernetes.NewForConfig(silent)
	if err != nil {
		t.Fatal(err)
	}
	err = Run(t.Context(), Options{Client: client, Kubernetes: typed, Log: logr.Discard(), Config: api.ControllerConfig{
		APIAddress: netip.MustParseAddr("127.0.0.1"), APIPort: l.Addr().(*net.TCPAddr).Port}})
	if err == nil || !strings.Contains(err.Error(), "address already in use (change apiAddress or apiPort)") {
		t.Errorf("got %v", err)
	}
}

// What can't be listed is named, with the remedy, and client-go still knows what the error is.
func TestUnlisted(t *testing.T) {
	err := unlisted(api.PoolResource, apierrors.NewNotFound(api.PoolResource.GroupResource(), ""))
	want := "the API server knows no ippools.crd.antrea.io: kubectl apply -f build/manifests/crds.yaml"
	if !strings.Contains(err.Error(), want) || !apierrors.IsNotFound(err) {
		t.Errorf("without the definitions: %v", err)
	}
	err = unlisted(nodes, apierrors.NewResourceExpired("too old"))
	if !strings.Contains(err.Error(), "listing nodes: too old") || !apierrors.IsResourceExpired(err) {
		t.Errorf("an old version: %v", err)
	}
}
