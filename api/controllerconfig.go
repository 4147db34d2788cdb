package api

import (
	"net/netip"
	"time"
)

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
	NodeIPAM                NodeIPAM
	Reclaim                 Reclaim
	// PoolWarningPercent is from how many percent of its addresses in use, 1 to 100,
	// an IPPool has condition Filling.
	PoolWarningPercent int
}

// Reclaim says whether, and how, addresses are given back that owners on nodes hold
// which are deleted or fenced.
type Reclaim struct {
	Enabled bool
	// GracePeriod is the least time between the two looks at which an owner is gone.
	GracePeriod time.Duration
	// CoolingPeriod is how long what was given back is not given again.
	CoolingPeriod time.Duration
}

// NodeIPAM says whether, and from what, Nodes get podCIDRs.
type NodeIPAM struct {
	Enabled bool
	// ClusterCIDRs are not empty where Enabled, do not overlap, and hold at least
	// one podCIDR each.
	ClusterCIDRs []netip.Prefix
	// MaskSizeIPv4 and MaskSizeIPv6 are the lengths of podCIDRs, in bits.
	MaskSizeIPv4, MaskSizeIPv6 int
	// ServiceCIDR and ServiceCIDRv6 are left out. The zero value: none.
	ServiceCIDR, ServiceCIDRv6 netip.Prefix
}
