package api

import (
	"net/netip"
	"time"
)

// ControllerConfig is fairlead-controller's config file, validated, with the default if the file does not set a key.
// Key names, defaults and the keys without effect are in docs/config.md.
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
	// PoolWarningPercent is the percentage of addresses in use, 1 to 100, from which an IPPool has condition Filling.
	PoolWarningPercent int
}

// Reclaim says whether, and how, addresses of owners on deleted or fenced nodes are reclaimed.
type Reclaim struct {
	Enabled bool
	// GracePeriod is the shortest time between the two checks that find an owner gone.
	GracePeriod time.Duration
	// CoolingPeriod is how long a reclaimed address is not allocated again.
	CoolingPeriod time.Duration
}

// NodeIPAM says whether, and from which ranges, podCIDRs are assigned to Nodes.
type NodeIPAM struct {
	Enabled bool
	// ClusterCIDRs are not empty if Enabled, do not overlap, and have room for at least one podCIDR each.
	ClusterCIDRs []netip.Prefix
	// MaskSizeIPv4 and MaskSizeIPv6 are the lengths of podCIDRs, in bits.
	MaskSizeIPv4, MaskSizeIPv6 int
	// ServiceCIDR and ServiceCIDRv6 are excluded. The zero value: none.
	ServiceCIDR, ServiceCIDRv6 netip.Prefix
}
