package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/fairlead-cni/fairlead/api"
)

// serveHTTP answers /healthz (the process runs) and, unless switched off, /metrics.
// It returns when ctx ends, or at once when the address can't be used.
func serveHTTP(ctx context.Context, cfg api.ControllerConfig, r *prometheus.Registry) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	if cfg.EnablePrometheusMetrics {
		mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
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

// metrics is what /metrics says.
type metrics struct {
	registry *prometheus.Registry
	// used and total are addresses, ready is 0 or 1, all by pool.
	used, total, ready *prometheus.GaugeVec
	writes             prometheus.Counter
}

func newMetrics() *metrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"pool"})
	}
	m := &metrics{registry: prometheus.NewRegistry(),
		used:  gauge("fairlead_pool_addresses_used", "Addresses of an IPPool that are held, cooling ones among them."),
		total: gauge("fairlead_pool_addresses_total", "Addresses that an IPPool can hand out."),
		ready: gauge("fairlead_pool_ready", "1 if the IPPool hands out addresses."),
		writes: prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_pool_status_writes_total",
			Help: "Statuses of IPPools that were written."})}
	m.registry.MustRegister(m.used, m.total, m.ready, m.writes, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// set replaces what is said of the pools.
func (m *metrics) set(reports map[string]api.IPPoolStatus) {
	for _, g := range []*prometheus.GaugeVec{m.used, m.total, m.ready} {
		g.Reset()
	}
	for name, s := range reports {
		m.used.WithLabelValues(name).Set(float64(s.Usage.Used))
		m.total.WithLabelValues(name).Set(float64(s.Usage.Total))
		ready := 0.0
		if meta.IsStatusConditionTrue(s.Conditions, api.PoolReady) {
			ready = 1
		}
		m.ready.WithLabelValues(name).Set(ready)
	}
}
