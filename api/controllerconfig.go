package api

import "net/netip"

// ControllerConfig is what fairlead-controller takes from its config file, checked,
// with the default where the file does not name a key. Key names, defaults and the
// keys without effect are in docs/config.md.
type ControllerConfig struct {
	// KubeAPIServerOverride and ClientConnection are as in AgentConfig.
	KubeAPIServerOverride string
	ClientConnection      ClientConnection
	// APIAddress and APIPort (TCP) are where /healthz and, if
	// EnablePrometheusMetrics, /metrics are served.
	APIAddress              netip.Addr
	APIPort                 int
	EnablePrometheusMetrics bool
}
