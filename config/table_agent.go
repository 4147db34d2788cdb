package config

// What Fairlead does instead: reasons that several keys share, so that they share one warning too.
const (
	noAntrea    = "there is no antrea-controller to call"
	noProxy     = "Fairlead translates ClusterIPs for pods only: NodePort, LoadBalancer, externalIPs and the node's own processes need kube-proxy"
	noExport    = "Fairlead does not export flow records"
	noMulticast = "multicast between pods is not forwarded"
	noMCluster  = "Fairlead does not connect clusters: pods of other clusters are unreachable"
	noPortLocal = "node ports are not forwarded to pods"
	noSecondary = "Fairlead creates one interface per pod: for secondary networks use Multus, with Fairlead as IPAM plugin"
	noAudit     = "there is no file of an audit log: denied packets are in the agent's log (policyLogDenied)"
	noTLS       = "the agent serves plain HTTP, on apiAddress, which is 127.0.0.1 unless set"
	noFlowtable = "Fairlead installs no nftables flowtable: forwarded packets take the kernel's normal path"
	noVMs       = "Fairlead serves the pods of Kubernetes nodes only"

	noEncryption = "Fairlead does not encrypt: traffic between nodes would be in clear text"
	noPolicy     = "Fairlead enforces NetworkPolicy and ClusterNetworkPolicy only: traffic that Antrea's own policies should block would pass"
	noEgress     = "Fairlead has no Egress: pods would reach the outside with their node's address"
)

// agentKeys are the keys of Antrea's agent that have no effect or are refused. Harmless values are mostly those that
// Antrea's chart writes by default.
func agentKeys() []Entry {
	yes, no := []string{"true"}, []string{"false"}
	return []Entry{
		{In: Agent, Key: "secondaryNetwork.ovsBridges", Want: anyList(), Effect: Ignored, Text: noSecondary},
		{In: Agent, Key: "antreaClientConnection.kubeconfig", Want: anyText(), Effect: Ignored, Text: noAntrea},
		{In: Agent, Key: "antreaClientConnection.acceptcontenttypes", Want: anyText(), Effect: Ignored, Text: noAntrea},
		{In: Agent, Key: "antreaClientConnection.contenttype", Want: anyText(), Effect: Ignored, Text: noAntrea},
		{In: Agent, Key: "antreaClientConnection.qps", Want: integer(0, 1<<31-1), Effect: Ignored, Text: noAntrea},
		{In: Agent, Key: "antreaClientConnection.burst", Want: integer(0, 1<<31-1), Effect: Ignored, Text: noAntrea},
		{In: Agent, Key: "hostProcPathPrefix", Want: path(4095), Effect: Ignored, Harmless: []string{"/"},
			Text: "the agent uses /proc as it sees it, which must be the node's"},
		{In: Agent, Key: "hostNetworkAcceleration.enable", Want: boolean(), Effect: Ignored, Harmless: no, Text: noFlowtable},
		{In: Agent, Key: "hostNetworkMode", Want: oneOf("iptables", "nftables"), Effect: Ignored,
			Harmless: []string{"iptables"}, Text: "the masquerade is set with iptables, whichever variant the node has"},
		{In: Agent, Key: "packetInRate", Want: integer(0, 1<<31-1), Effect: Ignored, Harmless: []string{"0", "500", "5000"},
			Text: "the rate of denied packets that are sent to the agent for its log is fixed, at 20 per second"},
		{In: Agent | Controller, Key: "tlsCipherSuites", Want: anyText(), Effect: Ignored, Text: noTLS},
		{In: Agent | Controller, Key: "tlsMinVersion", Want: anyText(), Effect: Ignored, Text: noTLS},

		{In: Agent, Key: "antreaProxy.enable", Want: boolean(), Effect: Ignored, Harmless: no, Text: noProxy},
		{In: Agent, Key: "antreaProxy.proxyAll", Want: boolean(), Effect: Refused, Harmless: no,
			Text: "without kube-proxy NodePort, LoadBalancer and externalIPs would not work: Fairlead translates ClusterIPs for pods only"},
		{In: Agent, Key: "antreaProxy.nodePortAddresses", Want: names(), Effect: Ignored, Text: noProxy},
		{In: Agent, Key: "antreaProxy.skipServices", Want: names(), Effect: Ignored, Text: noProxy},
		{In: Agent, Key: "antreaProxy.proxyLoadBalancerIPs", Want: boolean(), Effect: Ignored, Harmless: yes, Text: noProxy},
		{In: Agent, Key: "antreaProxy.serviceProxyName", Want: anyText(), Effect: Ignored, Text: noProxy},
		{In: Agent, Key: "antreaProxy.defaultLoadBalancerMode", Want: oneOf("nat", "dsr"), Effect: Ignored,
			Harmless: []string{"nat"}, Text: noProxy},
		{In: Agent, Key: "antreaProxy.disableServiceHealthCheckServer", Want: boolean(), Effect: Ignored,
			Harmless: []string{"true", "false"}, Text: noProxy},
		{In: Agent, Key: "antreaProxy.serviceHealthCheckServerBindAddress", Want: anyText(), Effect: Ignored, Text: noProxy},

		{In: Agent, Key: "trafficEncryptionMode", Want: oneOf("none", "ipsec", "wireGuard"), Effect: Refused,
			Harmless: []string{"none"}, Text: noEncryption},
		{In: Agent, Key: "enableIPSecTunnel", Want: boolean(), Effect: Refused, Harmless: no, Text: noEncryption},
		{In: Agent, Key: "ipsec.authenticationMode", Want: oneOf("psk", "cert"), Effect: Refused,
			Harmless: []string{"psk"}, Text: noEncryption},
		{In: Agent, Key: "wireGuard.port", Want: port(), Effect: Ignored, Harmless: []string{"0", "51820"},
			Text: "there is no WireGuard; trafficEncryptionMode: wireGuard is refused"},

		{In: Agent, Key: "egress.exceptCIDRs", Want: subnets(), Effect: Refused, Text: noEgress},
		{In: Agent, Key: "egress.maxEgressIPsPerNode", Want: integer(0, 255), Effect: Ignored,
			Harmless: []string{"0", "255"}, Text: "Fairlead has no Egress; configuration that needs it is rejected"},
		{In: Agent, Key: "egress.snatFullyRandomPorts", Want: boolean(), Effect: Ignored, Harmless: no,
			Text: "Fairlead has no Egress; configuration that needs it is rejected"},
		{In: Agent, Key: "egress.uniqueMACForSubInterfaces", Want: boolean(), Effect: Ignored, Harmless: yes,
			Text: "Fairlead has no Egress; configuration that needs it is rejected"},
		{In: Agent, Key: "clusterPort", Want: port(), Effect: Ignored, Harmless: []string{"0", "10351"},
			Text: "agents do not gossip, so no port is opened"},

		{In: Agent, Key: "dnsServerOverride", Want: anyText(), Effect: Ignored, Text: "Fairlead has no FQDN policies"},
		{In: Agent, Key: "fqdnCacheMinTTL", Want: integer(0, 1<<31-1), Effect: Ignored, Harmless: []string{"0"},
			Text: "Fairlead has no FQDN policies"},
		{In: Agent, Key: "auditLogging.maxSize", Want: integer(0, 1<<31-1), Effect: Ignored,
			Harmless: []string{"0", "500"}, Text: noAudit},
		{In: Agent, Key: "auditLogging.maxBackups", Want: integer(0, 1<<31-1), Effect: Ignored,
			Harmless: []string{"3"}, Text: noAudit},
		{In: Agent, Key: "auditLogging.maxAge", Want: integer(0, 1<<31-1), Effect: Ignored,
			Harmless: []string{"28"}, Text: noAudit},
		{In: Agent, Key: "auditLogging.compress", Want: boolean(), Effect: Ignored, Harmless: yes, Text: noAudit},
		{In: Agent, Key: "nodeType", Want: oneOf("k8sNode", "externalNode"), Effect: Refused,
			Harmless: []string{"k8sNode"}, Text: noVMs + "; the policies of an external node would not be enforced"},
		{In: Agent, Key: "externalNode.externalNodeNamespace", Want: anyText(), Effect: Ignored,
			Harmless: []string{"default"}, Text: noVMs},
		{In: Agent, Key: "externalNode.policyBypassRules", Want: anyList(), Effect: Refused, Text: noPolicy},

		{In: Agent, Key: "multicast.enable", Want: boolean(), Effect: Ignored, Harmless: no, Text: noMulticast},
		{In: Agent, Key: "multicast.multicastInterfaces", Want: names(), Effect: Ignored, Text: noMulticast},
		{In: Agent, Key: "multicast.igmpQueryVersions", Want: list("whole numbers", "!!int"), Effect: Ignored,
			Harmless: []string{"[1, 2, 3]"}, Text: noMulticast},
		{In: Agent, Key: "multicast.igmpQueryInterval", Want: anyDuration(), Effect: Ignored,
			Harmless: []string{"125s"}, Text: noMulticast},
		{In: Agent, Key: "multicastInterfaces", Want: names(), Effect: Ignored, Text: noMulticast},
		{In: Agent, Key: "multicluster.enable", Want: boolean(), Effect: Ignored, Harmless: no, Text: noMCluster},
		{In: Agent, Key: "multicluster.enableGateway", Want: boolean(), Effect: Ignored, Harmless: no, Text: noMCluster},
		{In: Agent | Controller, Key: "multicluster.namespace", Want: anyText(), Effect: Ignored, Text: noMCluster},
		{In: Agent | Controller, Key: "multicluster.enableStretchedNetworkPolicy", Want: boolean(), Effect: Refused,
			Harmless: no, Text: noPolicy},
		{In: Agent, Key: "multicluster.enablePodToPodConnectivity", Want: boolean(), Effect: Ignored, Harmless: no,
			Text: noMCluster},
		{In: Agent, Key: "multicluster.trafficEncryptionMode", Want: oneOf("none", "wireGuard"), Effect: Refused,
			Harmless: []string{"none"}, Text: noEncryption},
		{In: Agent, Key: "multicluster.wireGuard.port", Want: port(), Effect: Ignored,
			Harmless: []string{"0", "51821"}, Text: noMCluster},

		{In: Agent, Key: "nodePortLocal.enable", Want: boolean(), Effect: Ignored, Harmless: no, Text: noPortLocal},
		{In: Agent, Key: "nodePortLocal.portRange", Want: anyText(), Effect: Ignored,
			Harmless: []string{"61000-62000"}, Text: noPortLocal},
		{In: Agent, Key: "nplPortRange", Want: anyText(), Effect: Ignored, Text: noPortLocal},
		{In: Agent, Key: "flowExporter.enable", Want: boolean(), Effect: Ignored, Harmless: no, Text: noExport},
		{In: Agent, Key: "flowExporter.flowCollectorAddr", Want: anyText(), Effect: Ignored,
			Harmless: []string{"flow-aggregator/flow-aggregator", "flow-aggregator/flow-aggregator:4739:tls",
				"flow-aggregator.flow-aggregator.svc:4739:tls"}, Text: noExport},
		{In: Agent, Key: "flowExporter.flowPollInterval", Want: anyDuration(), Effect: Ignored,
			Harmless: []string{"5s"}, Text: noExport},
		{In: Agent, Key: "flowExporter.activeFlowExportTimeout", Want: anyDuration(), Effect: Ignored,
			Harmless: []string{"5s", "30s"}, Text: noExport},
		{In: Agent, Key: "flowExporter.idleFlowExportTimeout", Want: anyDuration(), Effect: Ignored,
			Harmless: []string{"15s"}, Text: noExport},
		{In: Agent, Key: "flowExporter.protocolFilter", Want: names(), Effect: Ignored, Text: noExport},
		{In: Agent, Key: "flowCollectorAddr", Want: anyText(), Effect: Ignored, Text: noExport},
		{In: Agent, Key: "flowPollInterval", Want: anyDuration(), Effect: Ignored, Text: noExport},
		{In: Agent, Key: "activeFlowExportTimeout", Want: anyDuration(), Effect: Ignored, Text: noExport},
		{In: Agent, Key: "idleFlowExportTimeout", Want: anyDuration(), Effect: Ignored, Text: noExport},
	}
}
