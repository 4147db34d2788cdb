package controller

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/dynamic"
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
	client, err := dynamic.NewForConfig(&rest.Config{Host: "http://" + l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	err = Run(t.Context(), Options{Client: client, Log: logr.Discard(), Config: api.ControllerConfig{
		APIAddress: netip.MustParseAddr("127.0.0.1"), APIPort: l.Addr().(*net.TCPAddr).Port}})
	if err == nil || !strings.Contains(err.Error(), "address already in use (change apiAddress or apiPort)") {
		t.Errorf("got %v", err)
	}
}
