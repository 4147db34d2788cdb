// Package kube has the agent's client of the Kubernetes API, and its Events. Those Events, which carry the component's
// name, are the only objects in the API that it owns.
package kube

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead-cni/fairlead/api"
)

// Component is the agent's name in requests to the API server and in Events.
const Component = "fairlead-agent"

// dialTimeout bounds one attempt to connect to the API server, for which client-go would allow 30 s. A server that
// stops responding on an open connection is detected by client-go's HTTP/2 pings, after 45 s.
const dialTimeout = 5 * time.Second

// The client's own limits unless the config sets others: 100 pods created at once are looked up within a second or two.
const defaultQPS, defaultBurst = 50, 100

// Client is a client of the API server. It is safe for concurrent use.
type Client struct {
	Kubernetes kubernetes.Interface
	// Metadata reads objects of any kind without spec and status.
	Metadata metadata.Interface
	// Dynamic reads and writes IPPools and IPAllocations.
	Dynamic dynamic.Interface
	// Config is its configuration, for streams, which need connections of their own.
	Config *rest.Config
	// Server is the API server's URL, for messages.
	Server string
	// Requests counts the requests of all the above by HTTP method, including watches and failed ones.
	Requests *prometheus.CounterVec
}

// New returns a client as configured: by clientConnection.kubeconfig, else by the ServiceAccount of the agent's pod. It
// sends no request. version is the agent's, for the server's log. The error says which key to set.
func New(cfg api.AgentConfig, version string) (*Client, error) {
	return NewFor(Component, cfg.KubeAPIServerOverride, cfg.ClientConnection, version)
}

// NewFor is New for any component, by its two keys of the config.
func NewFor(component, override string, cc api.ClientConnection, version string) (*Client, error) {
	agent := component + "/" + version
	config, err := restConfig(override, cc, agent)
	if err != nil {
		return nil, err
	}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("kubeAPIServerOverride %q or the kubeconfig's server: %w: want a host, host:port or URL",
			override, err)
	}
	connection := &renewing{connect: func() (http.RoundTripper, error) {
		config, err := restConfig(override, cc, agent)
		if err != nil {
			return nil, err
		}
		return rest.TransportFor(config)
	}}
	if connection.now, err = connection.connect(); err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	return newClient(config, &http.Client{Transport: connection}, server.String())
}

// ForConfig returns a client for a configuration that was read elsewhere.
func ForConfig(config *rest.Config) (*Client, error) {
	connection, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	return newClient(config, connection, config.Host)
}

// newClient creates all clients on one connection.
func newClient(config *rest.Config, connection *http.Client, server string) (*Client, error) {
	requests := newRequests()
	counted := *connection
	counted.Transport = counting{cmp.Or(connection.Transport, http.DefaultTransport), requests}
	connection = &counted
	typed, err := kubernetes.NewForConfigAndClient(config, connection)
	if err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	meta, err := metadata.NewForConfigAndClient(config, connection)
	if err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	dyn, err := dynamic.NewForConfigAndClient(config, connection)
	if err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	return &Client{Kubernetes: typed, Metadata: meta, Dynamic: dyn, Config: config, Server: server,
		Requests: requests}, nil
}

// newRequests returns a counter that has each method from the start.
func newRequests() *prometheus.CounterVec {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairlead_api_requests_total",
		Help: "Requests to the Kubernetes API by HTTP method; GET includes lists and watches."}, []string{"method"})
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		requests.WithLabelValues(m)
	}
	return requests
}

// counting counts the requests through a connection.
type counting struct {
	http.RoundTripper
	requests *prometheus.CounterVec
}

// RoundTrip implements http.RoundTripper.
func (c counting) RoundTrip(req *http.Request) (*http.Response, error) {
	c.requests.WithLabelValues(req.Method).Inc()
	return c.RoundTripper.RoundTrip(req)
}

// restConfig returns how to reach the API server; userAgent is for its log.
func restConfig(override string, c api.ClientConnection, userAgent string) (*rest.Config, error) {
	config, err := connectionOf(c.Kubeconfig, WithScheme(override))
	if err != nil {
		return nil, err
	}
	config.UserAgent = userAgent
	config.QPS, config.Burst = defaultQPS, defaultBurst
	if c.QPS > 0 {
		config.QPS = float32(c.QPS)
	}
	if c.Burst > 0 {
		config.Burst = c.Burst
	}
	config.ContentType = cmp.Or(c.ContentType, runtime.ContentTypeProtobuf)
	config.AcceptContentTypes = cmp.Or(c.AcceptContentTypes, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON)
	config.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	// Warnings of deprecated versions are for the developers who choose the version.
	config.WarningHandler = rest.NoWarnings{}
	return config, nil
}

// ErrNoAccess says that there are no credentials.
var ErrNoAccess = errors.New("no access to the Kubernetes API: this is not a pod with a ServiceAccount, and " +
	"clientConnection.kubeconfig is not set. Set it to a kubeconfig file; an agent may set manifestsDir instead, to read a directory")

// connectionOf returns the API server's address and the credentials.
func connectionOf(kubeconfig, override string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, ErrNoAccess
		}
		if err != nil {
			return nil, fmt.Errorf("the ServiceAccount of this pod: %w", err)
		}
		if override != "" {
			config.Host = override
		}
		return config, nil
	}
	if _, err := os.Stat(kubeconfig); err != nil {
		return nil, fmt.Errorf("clientConnection.kubeconfig: %w", err)
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
		&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: override}}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("clientConnection.kubeconfig %s: %w", kubeconfig, err)
	}
	return config, nil
}

// WithScheme converts a host or host:port to a URL. client-go would use plain HTTP for it if the kubeconfig has no CA.
func WithScheme(override string) string {
	if a, err := netip.ParseAddr(override); err == nil && a.Is6() {
		override = "[" + override + "]"
	}
	if override == "" || strings.Contains(override, "://") {
		return override
	}
	return "https://" + override
}
