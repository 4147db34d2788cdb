package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fairlead-cni/fairlead/api"
)

// ServeHTTP serves /healthz (the process runs), /readyz (the node serves pods, or 503 and the reason; what is degraded
// follows the "ok"), /state (api.AgentState, only for clients on the node itself), POST /reach/NODE (for these, too: it
// calls probe) and, unless disabled, /metrics. It returns when ctx ends, or at once if the address can't be used.
func ServeHTTP(ctx context.Context, cfg api.AgentConfig, ready func() error, state func() api.AgentState,
	probe func(node string, now time.Time) error, m *Metrics) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
		if d := state().Degraded; d != "" {
			fmt.Fprintln(w, "degraded: "+d)
		}
	})
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, r *http.Request) {
		if !fromHere(r) {
			http.Error(w, "only served to clients on this node", http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(state()) // the client may be gone
	})
	mux.HandleFunc("POST /reach/{node}", func(w http.ResponseWriter, r *http.Request) {
		if !fromHere(r) {
			http.Error(w, "only served to clients on this node", http.StatusForbidden)
		} else if err := probe(r.PathValue("node"), time.Now()); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		} else {
			w.WriteHeader(http.StatusNoContent)
		}
	})
	if cfg.EnablePrometheusMetrics {
		mux.Handle("GET /metrics", promhttp.HandlerFor(m.Registry, promhttp.HandlerOpts{}))
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

// fromHere reports whether a request comes from this node.
func fromHere(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	to, known := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if err != nil || !known {
		return false
	}
	here, err := netip.ParseAddrPort(to.String())
	return err == nil && (from.Addr().Unmap().IsLoopback() || from.Addr().Unmap() == here.Addr().Unmap())
}
