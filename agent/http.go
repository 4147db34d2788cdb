package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fairlead-cni/fairlead/api"
)

// serveHTTP answers /healthz (the process runs), /readyz (the node serves
// pods, or 503 and the reason) and, unless switched off, /metrics. It returns
// when ctx ends, or at once when the address can't be used.
func serveHTTP(ctx context.Context, cfg api.AgentConfig, ready func() error, m *metrics) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	if cfg.EnablePrometheusMetrics {
		mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	}
	addr := net.JoinHostPort(cfg.APIAddress.String(), strconv.Itoa(cfg.APIPort))
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("serving health and metrics on %s: %w (change apiAddress or apiPort)", addr, err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving health and metrics on %s: %w", addr, err)
	}
	return nil
}
