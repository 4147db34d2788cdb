package config

import (
	"cmp"
	"time"

	"github.com/fairlead-cni/fairlead/api"
)

const noWebhooks = "fairlead-controller has no webhook and no API, and needs no certificate"

// honouredControllerKeys are the controller's keys that have an effect. They are stored in the same fields as the
// agent's keys of the same name.
func honouredControllerKeys() []Entry {
	return []Entry{
		{In: Controller, Key: "kubeAPIServerOverride", Want: anyText(), Default: `""`, Effect: Honoured,
			Text: "host, host:port or URL of the Kubernetes API server, in place of the one in the kubeconfig or in the " +
				"pod's environment. Set it where there is no kube-proxy",
			set: func(c *values, v Value) { c.KubeAPIServerOverride = v.Str }},
		{In: Controller, Key: "clientConnection.kubeconfig", Want: path(4095), Default: `""`, Effect: Honoured,
			Text: "kubeconfig file of the controller; empty: the ServiceAccount of its pod",
			set:  func(c *values, v Value) { c.ClientConnection.Kubeconfig = v.Str }},
		{In: Controller, Key: "clientConnection.acceptcontenttypes", Want: anyText(), Default: `""`, Effect: Honoured,
			Text: "media types that the controller accepts from the API server; empty: protobuf",
			set:  func(c *values, v Value) { c.ClientConnection.AcceptContentTypes = v.Str }},
		{In: Controller, Key: "clientConnection.contenttype", Want: anyText(), Default: `""`, Effect: Honoured,
			Text: "media type that the controller sends to the API server; empty: protobuf",
			set:  func(c *values, v Value) { c.ClientConnection.ContentType = v.Str }},
		{In: Controller, Key: "clientConnection.qps", Want: integer(0, 1<<31-1), Default: "0", Effect: Honoured,
			Text: "maximum number of requests per second to the API server; 0 means 50",
			set:  func(c *values, v Value) { c.ClientConnection.QPS = v.Int }},
		{In: Controller, Key: "clientConnection.burst", Want: integer(0, 1<<31-1), Default: "0", Effect: Honoured,
			Text: "maximum burst of requests to the API server; 0 means 100",
			set:  func(c *values, v Value) { c.ClientConnection.Burst = v.Int }},
		{In: Controller, Key: "apiPort", Want: port(), Default: "10349", Effect: Honoured,
			Text: "TCP port of `/healthz` and `/metrics`: plain HTTP; 0 means 10349",
			set:  func(c *values, v Value) { c.APIPort = cmp.Or(v.Int, 10349) }},
		{In: Controller, Key: "enablePrometheusMetrics", Want: boolean(), Default: "true", Effect: Honoured,
			Text: "serves `/metrics`",
			set:  func(c *values, v Value) { c.EnablePrometheusMetrics = v.Bool }},
		{In: Controller, Key: "apiAddress", Want: address(), Default: "127.0.0.1", Effect: Honoured,
			Text: "Fairlead's own: the address apiPort listens on",
			set:  func(c *values, v Value) { c.APIAddress = v.Addr }},
		{In: Controller, Key: "nodeIPAM.enableNodeIPAM", Want: boolean(), Default: "false", Effect: Honoured,
			Text: "assigns podCIDRs to Nodes. Set it where kube-controller-manager does not " +
				"(`--allocate-node-cidrs=false`); see [podCIDRs from fairlead-controller](node-ipam.md)",
			set: func(c *values, v Value) { c.NodeIPAM.Enabled = v.Bool }},
		{In: Controller, Key: "nodeIPAM.clusterCIDRs", Want: subnets(), Default: "[]", Effect: Honoured,
			Text: "ranges that podCIDRs are cut from, of one or two IP families. A family may have several, unlike in Antrea: the first with room is used. More may be added at any time",
			set:  func(c *values, v Value) { c.NodeIPAM.ClusterCIDRs = v.Prefixes }},
		{In: Controller, Key: "nodeIPAM.serviceCIDR", Want: subnet4(), Default: `""`, Effect: Honoured,
			Text: "IPv4 addresses of Services: no podCIDR is cut from them. The cluster's ServiceCIDRs are always excluded",
			set:  func(c *values, v Value) { c.NodeIPAM.ServiceCIDR = v.Prefixes[0] }},
		{In: Controller, Key: "nodeIPAM.serviceCIDRv6", Want: subnet6(), Default: `""`, Effect: Honoured,
			Text: "the same for IPv6",
			set:  func(c *values, v Value) { c.NodeIPAM.ServiceCIDRv6 = v.Prefixes[0] }},
		{In: Controller, Key: "nodeIPAM.nodeCIDRMaskSizeIPv4", Want: orZero(16, 30), Default: "24", Effect: Honoured,
			Text: "length of an IPv4 podCIDR; 0 is 24",
			set:  func(c *values, v Value) { c.NodeIPAM.MaskSizeIPv4 = cmp.Or(v.Int, 24) }},
		{In: Controller, Key: "nodeIPAM.nodeCIDRMaskSizeIPv6", Want: orZero(64, 126), Default: "64", Effect: Honoured,
			Text: "length of an IPv6 podCIDR; 0 is 64",
			set:  func(c *values, v Value) { c.NodeIPAM.MaskSizeIPv6 = cmp.Or(v.Int, 64) }},
		{In: Controller, Key: "ipam.poolWarningPercent", Want: integer(1, 100), Default: "80", Effect: Honoured,
			Text: "Fairlead's own: the percentage of addresses in use from which an IPPool has the condition Filling, and a Warning Event",
			set:  func(c *values, v Value) { c.PoolWarningPercent = v.Int }},
		{In: Controller, Key: "reclaim.enable", Want: boolean(), Default: "true", Effect: Honoured,
			Text: "Fairlead's own: reclaims addresses of IPPools from pods of deleted and of fenced Nodes; see " +
				"[Addresses of pods that are gone](reclaim.md)",
			set: func(c *values, v Value) { c.Reclaim.Enabled = v.Bool }},
		{In: Controller, Key: "reclaim.gracePeriod", Want: durationFrom(10*time.Second, time.Hour, ", 10s to 1h"),
			Default: "30s", Effect: Honoured,
			Text: "Fairlead's own: the minimum time between the two checks that find such a pod gone",
			set:  func(c *values, v Value) { c.Reclaim.GracePeriod = v.Duration }},
		{In: Controller, Key: "reclaim.coolingPeriod", Want: duration(api.MaxCoolingPeriod, ", at most 1h"), Default: "30s",
			Effect: Honoured,
			Text:   "Fairlead's own: how long such an address is then not allocated again, unless the pool is full. It corresponds to the agents' `ipam.coolingPeriod`",
			set:    func(c *values, v Value) { c.Reclaim.CoolingPeriod = v.Duration }},
	}
}

// controllerKeys are the keys that only Antrea's controller has and that have no effect.
func controllerKeys() []Entry {
	yes, no := []string{"true"}, []string{"false"}
	return []Entry{
		{In: Controller, Key: "selfSignedCert", Want: boolean(), Effect: Ignored, Harmless: yes, Text: noWebhooks},
		{In: Controller, Key: "clientCAFile", Want: anyText(), Effect: Ignored, Text: noWebhooks},
		{In: Controller, Key: "legacyCRDMirroring", Want: boolean(), Effect: Ignored, Harmless: no,
			Text: "Fairlead does not mirror resources of older API groups"},
		{In: Controller, Key: "ipsecCSRSigner.selfSignedCA", Want: boolean(), Effect: Ignored, Harmless: yes,
			Text: "there is no IPsec, so no certificate is signed for it"},
		{In: Controller, Key: "ipsecCSRSigner.autoApprove", Want: boolean(), Effect: Ignored, Harmless: yes,
			Text: "there is no IPsec, so no certificate is signed for it"},
	}
}
