package inputs

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/fairlead-cni/fairlead/test/apitest"
)

// door is a connection to the API server that can be closed, so that the server can change unobserved.
type door struct {
	c      *cluster
	addr   string
	target string

	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
}

// door creates one, and a kubeconfig that uses it.
func (c *cluster) door() *door {
	c.t.Helper()
	port, err := apitest.FreePort() // no client gets it while the door is shut
	c.must(err)
	d := &door{c: c, addr: fmt.Sprintf("127.0.0.1:%d", port), target: strings.TrimPrefix(c.URL, "https://")}
	d.open()
	c.must(apitest.Kubeconfig(c.kubeconfig, "https://"+d.addr, c.CA(), c.tokenFile))
	c.t.Cleanup(d.shut)
	return d
}

func (d *door) open() {
	d.c.t.Helper()
	l, err := net.Listen("tcp", d.addr)
	d.c.must(err)
	d.mu.Lock()
	d.listener = l
	d.mu.Unlock()
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", d.target)
			if err != nil {
				in.Close()
				continue
			}
			d.mu.Lock()
			d.conns = append(d.conns, in, out)
			d.mu.Unlock()
			go func() { io.Copy(in, out); in.Close() }()
			go func() { io.Copy(out, in); out.Close() }()
		}
	}()
}

func (d *door) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listener.Close()
	for _, c := range d.conns {
		c.Close()
	}
	d.conns = nil
}

// brokenProxy creates a proxy to the API server and a kubeconfig that uses it. The proxy answers every request with the
// given status; with 0 it forwards them. A change closes all connections.
func (c *cluster) brokenProxy() func(status int) {
	c.t.Helper()
	target, err := url.Parse(c.URL)
	c.must(err)
	through := httputil.NewSingleHostReverseProxy(target)
	through.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	through.FlushInterval = -1
	through.ErrorLog = log.New(io.Discard, "", 0)
	var status atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s := int(status.Load()); s != 0 {
			http.Error(w, "broken", s)
			return
		}
		through.ServeHTTP(w, r)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	c.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	ca := filepath.Join(c.dir, "proxy.crt")
	c.must(os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	c.must(apitest.Kubeconfig(c.kubeconfig, server.URL, ca, c.tokenFile))
	return func(s int) {
		status.Store(int64(s))
		server.CloseClientConnections()
	}
}
