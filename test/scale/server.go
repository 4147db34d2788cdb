package scale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/test/apitest"
)

// writers is the number of concurrent requests to the API server.
const writers = 40

// Cluster fills an API server.
type Cluster struct {
	*apitest.Server
	// Client has no client-side rate limit.
	Client *kubernetes.Clientset
}

// Of is the Cluster of s.
func Of(s *apitest.Server) (*Cluster, error) {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL, BearerToken: apitest.AdminToken, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.CA()},
		ContentConfig:   rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf}})
	return &Cluster{Server: s, Client: client}, err
}

// Nodes creates Node(from) up to Node(to-1).
func (c *Cluster) Nodes(ctx context.Context, from, to int) error {
	return Together(ctx, to-from, func(ctx context.Context, i int) error {
		_, err := c.Client.CoreV1().Nodes().Create(ctx, Node(from+i), metav1.CreateOptions{})
		return err
	})
}

// Together calls do for 0 to n-1 with limited concurrency, and returns the first error.
func Together(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { return do(ctx, i) })
	}
	return g.Wait()
}

// Heartbeats writes each Node's status every five minutes, as kubelets do, evenly distributed, until ctx ends. It keeps
// that pace even if a write takes longer than the interval.
func (c *Cluster) Heartbeats(ctx context.Context, nodes int) {
	var writing errgroup.Group
	writing.SetLimit(writers)
	defer func() { _ = writing.Wait() }() // a failed write is a missed heartbeat
	tick := time.NewTicker(5 * time.Minute / time.Duration(max(1, nodes)))
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		patch := fmt.Appendf(nil, `{"status": {"conditions": [{"type": "Ready", "lastHeartbeatTime": %q}]}}`,
			time.Now().UTC().Format(time.RFC3339))
		writing.Go(func() error {
			_, err := c.Client.CoreV1().Nodes().Patch(ctx, NodeName(i%max(1, nodes)), "application/strategic-merge-patch+json",
				patch, metav1.PatchOptions{}, "status")
			return err
		})
	}
}

// Door is a proxy to a server, from another network namespace or within the same one, that counts the traffic.
type Door struct {
	// Received counts the bytes from the server.
	Received atomic.Int64

	listener net.Listener
	to       string
	open     sync.WaitGroup

	mu   sync.Mutex
	sent []byte
}

// OpenDoor forwards connections accepted by l to the address to, of the same network, until Close.
func OpenDoor(l net.Listener, to string) *Door {
	d := &Door{listener: l, to: to}
	d.open.Go(d.serve)
	return d
}

// Close stops accepting connections. Open connections end with their peers.
func (d *Door) Close() error {
	err := d.listener.Close()
	d.open.Wait()
	return err
}

// Sent returns the bytes that were sent to the server since the last call.
func (d *Door) Sent() []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.sent
	d.sent = nil
	return out
}

func (d *Door) serve() {
	for {
		in, err := d.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		go d.pass(in)
	}
}

func (d *Door) pass(in net.Conn) {
	defer in.Close()
	out, err := net.Dial(d.listener.Addr().Network(), d.to)
	if err != nil {
		return
	}
	go func() {
		defer out.Close()
		_, _ = io.Copy(writes(func(p []byte) (int, error) { // a closed connection is not an error
			d.mu.Lock()
			d.sent = append(d.sent, p...)
			d.mu.Unlock()
			return out.Write(p)
		}), in)
	}()
	_, _ = io.Copy(writes(func(p []byte) (int, error) {
		d.Received.Add(int64(len(p)))
		return in.Write(p)
	}), out)
}

// writes adapts a function to io.Writer.
type writes func(p []byte) (int, error)

func (w writes) Write(p []byte) (int, error) { return w(p) }
