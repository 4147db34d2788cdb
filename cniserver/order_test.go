package cniserver_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/cniserver/wire"
)

// gate lets a test decide when a handler returns.
type gate struct{ entered, open chan struct{} }

func newGate() gate { return gate{make(chan struct{}, 100), make(chan struct{})} }

func (g gate) pass() {
	g.entered <- struct{}{}
	<-g.open
}

// stuckAdd is a handler whose ADD of the container "stuck" waits at the gate, even if its context has ended.
func stuckAdd(g gate) *handler {
	return &handler{add: func(_ context.Context, r cniserver.Request) (cniserver.Result, error) {
		if r.ContainerID == "stuck" {
			g.pass()
		}
		return dualStack(), nil
	}}
}

// goAsk starts a call and returns the channel of its response.
func goAsk(t *testing.T, socket string, r wire.Request) <-chan wire.Response {
	t.Helper()
	conn := dial(t, socket)
	send(t, conn, r)
	answer := make(chan wire.Response, 1)
	go func() { answer <- receive(t, conn) }()
	return answer
}

func stays[T any](t *testing.T, what string, c <-chan T) {
	t.Helper()
	select {
	case v := <-c:
		t.Errorf("%s: %v", what, v)
	case <-time.After(50 * time.Millisecond): // far longer than a call takes
	}
}

func TestDelWaitsForTheAddOfItsPodOnly(t *testing.T) {
	needNetns(t)
	g := newGate()
	h := stuckAdd(g)
	s := start(t, h, cniserver.Config{})
	add := goAsk(t, s.socket, request("ADD", container("stuck")))
	receiveWithin(t, "the ADD runs", g.entered)
	del := goAsk(t, s.socket, request("DEL", container("stuck")))
	stays(t, "the DEL was answered during the ADD", del)
	wantSuccess(t, ask(t, s.socket, request("ADD", container("other"))))
	wantSuccess(t, ask(t, s.socket, request("STATUS")))
	close(g.open)
	wantSuccess(t, receiveWithin(t, "the ADD is answered", add))
	wantSuccess(t, receiveWithin(t, "the DEL is answered", del))
}

func TestAnotherInterfaceOfThePodDoesNotWait(t *testing.T) {
	needNetns(t)
	g := newGate()
	h := &handler{add: func(_ context.Context, r cniserver.Request) (cniserver.Result, error) {
		if r.IfName == "eth0" {
			g.pass()
		}
		return dualStack(), nil
	}}
	s := start(t, h, cniserver.Config{})
	add := goAsk(t, s.socket, request("ADD"))
	receiveWithin(t, "the ADD runs", g.entered)
	wantSuccess(t, ask(t, s.socket, request("ADD", func(r *wire.Request) { r.IfName = "eth1" })))
	close(g.open)
	wantSuccess(t, receiveWithin(t, "the ADD is answered", add))
}

// A call that waits too long for an earlier one of its pod gets a response.
func TestWaitingEnds(t *testing.T) {
	needNetns(t)
	g := newGate()
	s := start(t, stuckAdd(g), cniserver.Config{CallWait: 2 * time.Second})
	add := goAsk(t, s.socket, request("ADD", container("stuck")))
	receiveWithin(t, "the ADD runs", g.entered)
	wantError(t, ask(t, s.socket, request("DEL", container("stuck"))), types.ErrTryAgainLater,
		"DEL was not started", "container stuck", "is still running", "2s")
	close(g.open)
	wantSuccess(t, receiveWithin(t, "the ADD is answered", add))
	wantSuccess(t, ask(t, s.socket, request("DEL", container("stuck"))))
}

func TestGCWaitsForOthersAndOthersForIt(t *testing.T) {
	needNetns(t)
	adds, gcs := newGate(), newGate()
	h := stuckAdd(adds)
	h.gc = func(context.Context, string, []cniserver.AttachmentID) error { gcs.pass(); return nil }
	s := start(t, h, cniserver.Config{})
	add := goAsk(t, s.socket, request("ADD", container("stuck")))
	receiveWithin(t, "the ADD runs", adds.entered)
	gc := goAsk(t, s.socket, request("GC"))
	stays(t, "the GC runs beside the ADD", gcs.entered)
	close(adds.open)
	wantSuccess(t, receiveWithin(t, "the ADD is answered", add))
	receiveWithin(t, "the GC runs", gcs.entered)
	late := goAsk(t, s.socket, request("ADD"))
	stays(t, "an ADD was answered during the GC", late)
	wantSuccess(t, ask(t, s.socket, request("STATUS")))
	close(gcs.open)
	wantSuccess(t, receiveWithin(t, "the GC is answered", gc))
	wantSuccess(t, receiveWithin(t, "the ADD is answered", late))
}

func TestGCGivesUpAndLetsOthersPass(t *testing.T) {
	needNetns(t)
	g := newGate()
	s := start(t, stuckAdd(g), cniserver.Config{GCWait: 2 * time.Second})
	add := goAsk(t, s.socket, request("ADD", container("stuck")))
	receiveWithin(t, "the ADD runs", g.entered)
	wantError(t, ask(t, s.socket, request("GC")), types.ErrTryAgainLater, "GC was not started", "2s")
	wantSuccess(t, ask(t, s.socket, request("ADD")))
	close(g.open)
	wantSuccess(t, receiveWithin(t, "the ADD is answered", add))
	wantSuccess(t, ask(t, s.socket, request("GC")))
}

func TestGCHandsOverTheList(t *testing.T) {
	var got string
	h := &handler{gc: func(_ context.Context, network string, valid []cniserver.AttachmentID) error {
		got = fmt.Sprint(network, valid)
		return nil
	}}
	s := start(t, h, cniserver.Config{})
	for list, want := range map[string]string{
		`[{"containerID":"a","ifname":"eth0"},{"containerID":"b","ifname":"net1"}]`: "n[{a eth0} {b net1}]",
		`[]`:   "n[]",
		`null`: "n[]", // libcni's empty list
	} {
		wantSuccess(t, ask(t, s.socket, request("GC", config(
			`{"cniVersion":"1.1.0","name":"n","type":"fairlead","cni.dev/valid-attachments":%s}`, list))))
		if got != want {
			t.Errorf("%s arrived as %s, want %s", list, got, want)
		}
	}
	h.gc = func(context.Context, string, []cniserver.AttachmentID) error {
		return errors.Join(errors.New("one failed"), errors.New("two failed"))
	}
	r := ask(t, s.socket, request("GC"))
	wantError(t, r, cniserver.CodeInternal, "one failed; two failed")
	if strings.Contains(r.Error.Msg, "\n") {
		t.Errorf("more than one line: %q", r.Error.Msg)
	}
}
