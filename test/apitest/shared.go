package apitest

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/test/kubebin"
)

// Shared is one Server for all tests of a package, started by the first that needs it. TestMain stops it. The zero
// value is ready to use.
type Shared struct {
	once   sync.Once
	dir    string
	server *Server
	err    error
}

// Get returns the server.
func (s *Shared) Get(t testing.TB) *Server {
	t.Helper()
	s.once.Do(s.start)
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.server
}

func (s *Shared) start() {
	ctx := context.Background() // not the test's: others use the server after it
	var program string
	if program, s.err = kubebin.Get(ctx, os.Stderr); s.err != nil {
		return
	}
	if s.dir, s.err = os.MkdirTemp("", "fairlead-apitest-"); s.err != nil {
		return
	}
	s.server, s.err = Start(ctx, program, s.dir)
}

// Stop stops the server, if there is one, and removes its files.
func (s *Shared) Stop() error {
	if s.server != nil {
		s.server.Stop()
	}
	if s.dir == "" {
		return nil
	}
	return os.RemoveAll(s.dir)
}
