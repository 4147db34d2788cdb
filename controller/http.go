package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/controller/forecast"
	"github.com/fairlead-cni/fairlead/ipam/nodecidr"
)

// handler serves /healthz (the process runs), /readyz (everything has been read from the API server) and, unless
// disabled, /metrics.
func handler(cfg api.ControllerConfig, m prometheus.Gatherer, synced func() bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !synced() {
			http.Error(w, "caches are not synced with the API server yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	if cfg.EnablePrometheusMetrics {
		mux.Handle("GET /metrics", promhttp.HandlerFor(m, promhttp.HandlerOpts{}))
	}
	return mux
}

// serveHTTP serves h at apiAddress and apiPort until ctx ends. A port that is in use is an error, or, with a
// HealthSocket, is retried: another controller on the node has it.
func serveHTTP(ctx context.Context, o Options, h http.Handler) error {
	cfg := o.Config
	addr := net.JoinHostPort(cfg.APIAddress.String(), strconv.Itoa(cfg.APIPort))
	reported := false
	for {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		switch {
		case err == nil:
			return serve(ctx, addr, listener, h)
		case ctx.Err() != nil:
			return nil
		case o.HealthSocket == "" || !errors.Is(err, syscall.EADDRINUSE):
			return fmt.Errorf("serving health and metrics on %s: %w (change apiAddress or apiPort)", addr, err)
		case !reported:
			reported = true
			o.Log.Info("port is in use, possibly by another fairlead-controller on this node; metrics are served once it is free",
				"address", addr)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(o.Intervals.Port):
		}
	}
}

// serve serves h until ctx ends.
func serve(ctx context.Context, where string, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving health and metrics on %s: %w", where, err)
	}
	return nil
}

// metrics are the metrics of the controller, served at /metrics.
type metrics struct {
	registry *prometheus.Registry
	// They count what this process has done.
	writes, assigned, unkept prometheus.Counter
	clusterMetrics
}

// clusterMetrics describe the state of the cluster. Only the leader serves them: those of a controller that was the
// leader would be out of date, and counted twice.
type clusterMetrics struct {
	cluster *prometheus.Registry
	// ended returns why the last term as leader ended; nil: there was none.
	ended atomic.Pointer[func() error]
	// used and total are addresses, ready is 0 or 1, all by pool.
	used, total, ready *prometheus.GaugeVec
	// fullIn is a forecast in seconds, by pool.
	fullIn *prometheus.GaugeVec
	// rangeUsed and rangeTotal are podCIDRs by range, faults by kind.
	rangeUsed, rangeTotal, faults *prometheus.GaugeVec
	waiting, stopped              prometheus.Gauge
	// kept are reserved addresses by the kind of object that they are reserved for.
	kept     *prometheus.GaugeVec
	unplaced prometheus.Gauge
}

// newMetrics returns the registered metrics; version is that of the program.
func newMetrics(version string) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	with := promauto.With(m.registry)
	counter := func(name, help string) prometheus.Counter {
		return with.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	with.NewGaugeFunc(prometheus.GaugeOpts{Name: "fairlead_build_info", Help: "1, with the version of the program as label.",
		ConstLabels: prometheus.Labels{"version": version}}, func() float64 { return 1 })
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.writes = counter("fairlead_pool_status_writes_total", "Writes of IPPool status.")
	m.assigned = counter("fairlead_nodes_assigned_podcidrs_total", "Nodes that this process has assigned podCIDRs to.")
	m.unkept = counter("fairlead_reservations_released_total", "Reservations that this process has released.")
	m.clusterMetrics.register()
	return m
}

func (m *clusterMetrics) register() {
	m.cluster = prometheus.NewRegistry()
	with := promauto.With(m.cluster)
	gauges := func(name, help, label string) *prometheus.GaugeVec {
		return with.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return with.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m.used = gauges("fairlead_pool_addresses_used", "Addresses of an IPPool that are in use, including cooling ones.", "pool")
	m.total = gauges("fairlead_pool_addresses", "Addresses that an IPPool can allocate.", "pool")
	m.ready = gauges("fairlead_pool_ready", "1 if addresses can be allocated from the IPPool, else 0.", "pool")
	m.fullIn = gauges("fairlead_pool_time_to_exhaustion_seconds",
		"Seconds until the IPPool is exhausted at its recent growth rate. Absent if it does not grow.", "pool")
	m.rangeUsed = gauges("fairlead_podcidrs_used", "PodCIDRs of a range that are assigned or not assignable.", "range")
	m.rangeTotal = gauges("fairlead_podcidrs", "PodCIDRs in a range.", "range")
	m.faults = gauges("fairlead_podcidr_problems", "Problems with podCIDRs of Nodes, by kind.", "kind")
	m.waiting = gauge("fairlead_nodes_without_podcidr", "Nodes for which no podCIDR is left.")
	m.stopped = gauge("fairlead_nodeipam_stopped", "1 if no podCIDRs are assigned because another allocator is active, else 0.")
	m.kept = gauges("fairlead_reserved_addresses", "Addresses reserved for pods across restarts, by the kind of the object "+
		"with which they are released.", "owner_kind")
	m.unplaced = gauge("fairlead_statefulset_addresses_missing", "Addresses of StatefulSet pods that could not be reserved.")
}

// lead serves the metrics of the cluster until the term ends, without values of an earlier term.
func (m *clusterMetrics) lead(term context.Context) {
	byLabel := []*prometheus.GaugeVec{m.used, m.total, m.ready, m.fullIn, m.rangeUsed, m.rangeTotal, m.faults, m.kept}
	for _, g := range byLabel {
		g.Reset()
	}
	for _, g := range []prometheus.Gauge{m.waiting, m.stopped, m.unplaced} {
		g.Set(0)
	}
	ended := term.Err
	m.ended.Store(&ended)
}

// Gather implements prometheus.Gatherer.
func (m *metrics) Gather() ([]*dto.MetricFamily, error) {
	if ended := m.ended.Load(); ended == nil || (*ended)() != nil {
		return m.registry.Gather()
	}
	return prometheus.Gatherers{m.registry, m.cluster}.Gather()
}

func newGauges(name, help, label string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{label})
}

// nodeIPAM updates the metrics of podCIDRs.
func (m *metrics) nodeIPAM(p nodecidr.Plan, stopped bool) {
	m.rangeUsed.Reset()
	m.rangeTotal.Reset()
	for _, u := range p.Usage {
		m.rangeUsed.WithLabelValues(u.Range.Cluster.String()).Set(float64(u.Used))
		m.rangeTotal.WithLabelValues(u.Range.Cluster.String()).Set(float64(u.Total))
	}
	m.faults.Reset()
	for _, kind := range nodecidr.Kinds() {
		m.faults.WithLabelValues(string(kind)).Set(0)
	}
	for _, f := range p.Faults {
		m.faults.WithLabelValues(string(f.Kind)).Inc()
	}
	m.waiting.Set(float64(len(p.Waiting)))
	m.stopped.Set(0)
	if stopped {
		m.stopped.Set(1)
	}
}

// keeping updates the metrics of reservations.
func (m *metrics) keeping(kept map[string][]api.IPAllocation, missing int) {
	m.kept.Reset()
	m.kept.WithLabelValues(api.KindStatefulSet).Set(0)
	for _, list := range kept {
		for _, a := range list {
			m.kept.WithLabelValues(a.Spec.Reservation.Kind).Inc()
		}
	}
	m.unplaced.Set(float64(missing))
}

// set updates the metrics of the pools.
func (m *metrics) set(reports map[string]api.IPPoolStatus, grows forecast.Growth) {
	for _, g := range []*prometheus.GaugeVec{m.used, m.total, m.ready, m.fullIn} {
		g.Reset()
	}
	for name, s := range reports {
		m.used.WithLabelValues(name).Set(float64(s.Usage.Used))
		m.total.WithLabelValues(name).Set(float64(s.Usage.Total))
		if in, known := grows.FullIn(name, s.Usage.Total-s.Usage.Used); known {
			m.fullIn.WithLabelValues(name).Set(in.Seconds())
		}
		ready := 0.0
		if meta.IsStatusConditionTrue(s.Conditions, api.PoolReady) {
			ready = 1
		}
		m.ready.WithLabelValues(name).Set(ready)
	}
}
