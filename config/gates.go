package config

// gate is an Antrea feature gate; its effect is that of the value true.
type gate struct {
	name   string
	effect Effect
	text   string
}

// featureGates are the rows for Antrea's feature gates and for the two that enable many at once. Antrea accepts every
// gate in both files. The value false is harmless: Fairlead has these features never, or always.
func featureGates() []Entry {
	const (
		always  = "the feature belongs to AntreaProxy. " + noProxy
		tooMany = "it enables features that Fairlead rejects, such as Antrea's policies and Egress: list the gates you need"
	)
	gates := []gate{
		{"AllAlpha", Refused, tooMany},
		{"AllBeta", Refused, tooMany},
		{"AdminNetworkPolicy", Refused, "Fairlead enforces its successor, ClusterNetworkPolicy: traffic that it should block would pass"},
		{"AntreaPolicy", Refused, noPolicy},
		{"L7NetworkPolicy", Refused, noPolicy},
		{"NodeNetworkPolicy", Refused, noPolicy},
		{"Egress", Refused, noEgress},
		{"EgressSeparateSubnet", Refused, noEgress},
		{"EgressTrafficShaping", Refused, noEgress},
		{"IPsecCertAuth", Refused, noEncryption},
		{"TrafficControl", Refused, "Fairlead does not mirror or redirect traffic: it would bypass the device that should inspect it"},
		{"ExternalNode", Refused, noVMs + "; the policies of an external node would not be enforced"},

		{"AntreaIPAM", Ignored, "enableBridgingMode enables IPPools, whatever the gate says"},
		{"AntreaNodeConfig", Ignored, noSecondary},
		{"SecondaryNetwork", Ignored, noSecondary},
		{"NodeIPAM", Ignored, "nodeIPAM.enableNodeIPAM decides, whatever the gate says"},
		{"AntreaProxy", Ignored, noProxy},
		{"CleanupStaleUDPSvcConntrack", Ignored, always},
		{"EndpointSlice", Ignored, always},
		{"LoadBalancerModeDSR", Ignored, always},
		{"PreferSameTrafficDistribution", Ignored, always},
		{"ServiceTrafficDistribution", Ignored, always},
		{"TopologyAwareHints", Ignored, always},
		{"ServiceExternalIP", Ignored, "Fairlead does not assign external IPs to Services"},
		{"NodePortLocal", Ignored, noPortLocal},
		{"BGPPolicy", Ignored, "Fairlead does not support BGP: no routes are advertised"},
		{"Multicast", Ignored, noMulticast},
		{"Multicluster", Ignored, noMCluster},
		{"FlowExporter", Ignored, noExport},
		{"L7FlowExporter", Ignored, noExport},
		{"NetworkPolicyStats", Ignored, "what policies accept and deny is counted at /metrics, as fairlead_policy_*"},
		{"NFTablesHostNetworkMode", Ignored, "the masquerade is set with iptables, whichever variant the node has"},
		{"NodeLatencyMonitor", Ignored, "Fairlead does not measure latency between nodes"},
		{"PacketCapture", Ignored, "use fairleadctl capture"},
		{"SupportBundleCollection", Ignored, "Fairlead does not collect support bundles"},
		{"Traceflow", Ignored, "Fairlead has no Traceflow: use fairleadctl trace on the node"},
	}
	var rows []Entry
	for _, g := range gates {
		harmless := []string{"false"}
		if g.name == "AntreaIPAM" || g.name == "NodeIPAM" {
			harmless = append(harmless, "true")
		}
		rows = append(rows, Entry{In: Agent | Controller, Key: "featureGates." + g.name, Want: boolean(),
			Effect: g.effect, Harmless: harmless, Text: g.text})
	}
	return rows
}
