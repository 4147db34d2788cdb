package config

import (
	"time"

	"github.com/fairlead-cni/fairlead/api"
)

// honouredKeys are the keys that have an effect: Antrea's first, then Fairlead's own.
func honouredKeys() []Entry {
	return []Entry{
		{In: Agent, Key: "ovsBridge", Want: interfaceName(), Default: "br-int", Effect: Honoured,
			Text: "the Open vSwitch bridge that Fairlead creates and programs",
			set:  func(c *values, v Value) { c.OVSBridge = v.Str }},
		{In: Agent, Key: "ovsDatapathType", Want: oneOf(api.DatapathSystem, api.DatapathNetdev),
			Default: api.DatapathSystem, Effect: Honoured,
			Text: "`system` is the kernel's datapath, `netdev` the userspace one (Antrea no longer has it)",
			set:  func(c *values, v Value) { c.OVSDatapathType = v.Str }},
		// 90 bytes leave room for the socket's name: the path of a unix socket has at most 107.
		{In: Agent, Key: "ovsRunDir", Want: path(90), Default: "/run/openvswitch", Effect: Honoured,
			Text: "directory of `db.sock` and `BRIDGE.mgmt`, the sockets of the node's Open vSwitch",
			set:  func(c *values, v Value) { c.OVSRunDir = v.Str }},
		{In: Agent, Key: "hostGateway", Want: interfaceName(), Default: "fairlead-gw0", Effect: Honoured,
			Text: "the interface that joins pods and host; it has the first address of each podCIDR. " +
				"Antrea's default is `antrea-gw0`",
			set: func(c *values, v Value) { c.HostGateway = v.Str }},
		{In: Agent, Key: "trafficEncapMode",
			Want:    oneOf(api.ModeEncap, api.ModeNoEncap, api.ModeHybrid, "networkPolicyOnly"),
			Default: api.ModeEncap, Effect: Honoured,
			Text: "how pods' packets travel between nodes: `encap`, through the tunnel; `noEncap`, unencapsulated, to nodes " +
				"in other subnets through the underlay's routers, which must have routes to the podCIDRs; `hybrid`, unencapsulated to " +
				"nodes in the same subnet and through the tunnel to others. Must be the same on all nodes",
			Except: []Exception{
				{"networkPolicyOnly", Refused, "Fairlead gives pods their network itself, and enforces policies on no " +
					"other plugin's pods"},
			},
			set: func(c *values, v Value) { c.TrafficEncapMode = v.Str }},
		{In: Agent, Key: "noSNAT", Want: boolean(), Default: "false", Effect: Honoured,
			Text: "pods' packets to the outside keep the pod's address. As in Antrea, an error unless " +
				"trafficEncapMode is noEncap",
			set: func(c *values, v Value) { c.NoSNAT = v.Bool }},
		{In: Agent, Key: "snatFullyRandomPorts", Want: boolean(), Default: "false", Effect: Honoured,
			Text: "the masquerade picks source ports at random (iptables `--random-fully`)",
			set:  func(c *values, v Value) { c.SNATFullyRandomPorts = v.Bool }},
		{In: Agent, Key: "tunnelType", Want: oneOf(api.TunnelGeneve, api.TunnelVXLAN, api.TunnelGRE, "stt"),
			Default: api.TunnelGeneve, Effect: Honoured,
			Text: "the tunnel's protocol. gre carries no IPv6 between nodes",
			Except: []Exception{{"stt", Refused, "Open vSwitch 3.6 removed stt, and Linux never had it, so pods on " +
				"other nodes would not be reached: use geneve, vxlan or gre, the same on all nodes"}},
			set: func(c *values, v Value) { c.TunnelType = v.Str }},
		{In: Agent, Key: "tunnelPort", Want: port(), Default: "0", Effect: Honoured,
			Text: "destination port of the tunnel; 0 means the one that IANA assigned to tunnelType",
			set:  func(c *values, v Value) { c.TunnelPort = v.Int }},
		{In: Agent, Key: "tunnelCsum", Want: boolean(), Default: "false", Effect: Honoured,
			Text: "checksums in the tunnel's outer header",
			set:  func(c *values, v Value) { c.TunnelCsum = v.Bool }},
		{In: Agent, Key: "defaultMTU", Want: orZero(576, 65000), Default: "0", Effect: Honoured,
			Text: "MTU in bytes of the gateway and the pods' interfaces; 0 means the transport interface's, less the " +
				"tunnel's overhead unless trafficEncapMode is noEncap. With IPv6 at least 1280",
			set: func(c *values, v Value) { c.DefaultMTU = v.Int }},
		{In: Agent, Key: "disableTXChecksumOffload", Want: boolean(), Default: "false", Effect: Honoured,
			Text: "disables TX checksum offload in pods. On the netdev datapath it is always disabled",
			set:  func(c *values, v Value) { c.DisableTXChecksumOffload = v.Bool }},
		{In: Agent, Key: "enableBridgingMode", Want: boolean(), Default: "false", Effect: Honoured,
			Text: "pods that request an IPPool get an address from it and are connected to the underlay, through the transport " +
				"interface, in any trafficEncapMode. On a node without a podCIDR the agent serves only such pods, instead of " +
				"exiting with code 78",
			set: func(c *values, v Value) { c.EnableBridgingMode = v.Bool }},
		{In: Agent, Key: "serviceCIDR", Want: subnet4(), Default: "10.96.0.0/12", Effect: Honoured,
			Text: "the IPv4 range of the cluster's Services (kube-apiserver's `--service-cluster-ip-range`), in addition " +
				"to those of ServiceCIDRs in the API. Bridged pods' packets to other addresses go to the underlay",
			set: func(c *values, v Value) { c.ServiceCIDR = v.Prefixes[0] }},
		{In: Agent, Key: "serviceCIDRv6", Want: subnet6(), Default: `""`, Effect: Honoured,
			Text: "the same for IPv6",
			set:  func(c *values, v Value) { c.ServiceCIDRv6 = v.Prefixes[0] }},
		{In: Agent, Key: "services", Want: oneOf(api.ServicesOVS, api.ServicesHost), Default: api.ServicesOVS, Effect: Honoured,
			Text: "what translates the ClusterIPs that pods send to. ovs: Open vSwitch, and endpoints see their client's own " +
				"address. host: the node's kube-proxy, and endpoints see the address of their client's node (docs/services.md)",
			set: func(c *values, v Value) { c.Services = v.Str }},
		{In: Agent, Key: "networkPolicies", Want: oneOf(api.PoliciesReport, api.PoliciesEnforce), Default: api.PoliciesEnforce,
			Effect: Honoured,
			Text: "whether NetworkPolicies and ClusterNetworkPolicies are enforced. enforce: Open vSwitch enforces them " +
				"(docs/policy.md). report: none is enforced, and each has an Event that says so",
			set: func(c *values, v Value) { c.NetworkPolicies = v.Str }},
		{In: Agent, Key: "policyStart", Want: oneOf(api.PolicyStartWait, api.PolicyStartClosed), Default: api.PolicyStartWait,
			Effect: Honoured,
			Text: "with networkPolicies: enforce, how new pods are handled while the policies are not known, after a start " +
				"without the API server. wait: they are not added for policyStartWait. closed: they are added, and only the node " +
				"reaches them",
			set: func(c *values, v Value) { c.PolicyStart = v.Str }},
		{In: Agent, Key: "policyStartWait", Want: duration(24*time.Hour, ", at most 24h"), Default: "1m", Effect: Honoured,
			Text: "with policyStart: wait, how long the agent waits for the policies before it continues as with closed",
			set:  func(c *values, v Value) { c.PolicyStartWait = v.Duration }},
		{In: Agent, Key: "policyLogDenied", Want: oneOf(api.PolicyLogNone, api.PolicyLogAnnotated, api.PolicyLogAll),
			Default: api.PolicyLogAnnotated, Effect: Honoured,
			Text: "with networkPolicies: enforce, the pods whose denied packets are logged, up to a limit " +
				"(docs/policy.md). annotated: those of Namespaces with the annotation `" + api.AnnotationLogDenied + ": \"true\"`",
			set: func(c *values, v Value) { c.PolicyLogDenied = v.Str }},
		{In: Agent, Key: "reachability", Want: oneOf(api.ReachabilityNone, api.ReachabilityProbe), Default: api.ReachabilityProbe,
			Effect: Honoured,
			Text: "whether agents probe the paths between pods on different nodes. probe: the last address of each podCIDR is used for " +
				"that, and `fairleadctl doctor` shows which nodes' pods do not reach each other (docs/reachability.md)",
			set: func(c *values, v Value) { c.Reachability = v.Str }},
		{In: Agent, Key: "transportInterface", Want: interfacePattern(), Default: `""`, Effect: Honoured,
			Text: "the interface that leads to other nodes: its address is the tunnel endpoint, and nodes in its subnets are reached without a tunnel in noEncap and hybrid mode. If a pattern matches several interfaces with addresses, the one with the Node's IP. Empty: the one found by transportInterfaceCIDRs, " +
				"else the one with the Node's IP",
			set: func(c *values, v Value) { c.TransportInterface = v.Str }},
		{In: Agent, Key: "transportInterfaceCIDRs", Want: subnets(), Default: "[]", Effect: Honoured,
			Text: "subnets in one of which the transport interface has an address; used if transportInterface is empty",
			set:  func(c *values, v Value) { c.TransportInterfaceCIDRs = v.Prefixes }},
		{In: Agent, Key: "cniSocket", Want: path(107), Default: "/run/fairlead/cni.sock", Effect: Honoured,
			Text: "the unix socket that the CNI plugin calls. Antrea's default is `/var/run/antrea/cni.sock`",
			set:  func(c *values, v Value) { c.CNISocket = v.Str }},
		{In: Agent, Key: "apiPort", Want: integer(1, 65535), Default: "10350", Effect: Honoured,
			Text: "TCP port of `/healthz`, `/readyz` and `/metrics`: plain HTTP",
			set:  func(c *values, v Value) { c.APIPort = v.Int }},
		{In: Agent, Key: "enablePrometheusMetrics", Want: boolean(), Default: "true", Effect: Honoured,
			Text: "serves `/metrics`",
			set:  func(c *values, v Value) { c.EnablePrometheusMetrics = v.Bool }},
		{In: Agent, Key: "kubeAPIServerOverride", Want: anyText(), Default: `""`, Effect: Honoured,
			Text: "host, host:port or URL of the Kubernetes API server, in place of the one in the kubeconfig or in the " +
				"pod's environment. Set it where kube-proxy does not run before the agent",
			set: func(c *values, v Value) { c.KubeAPIServerOverride = v.Str }},
		{In: Agent, Key: "clientConnection.kubeconfig", Want: path(4095), Default: `""`, Effect: Honoured,
			Text: "kubeconfig file of the agent; empty: the ServiceAccount of its pod",
			set:  func(c *values, v Value) { c.ClientConnection.Kubeconfig = v.Str }},
		{In: Agent, Key: "clientConnection.acceptcontenttypes", Want: anyText(), Default: `""`, Effect: Honoured,
			Text: "media types that the agent accepts from the API server; empty: protobuf",
			set:  func(c *values, v Value) { c.ClientConnection.AcceptContentTypes = v.Str }},
		{In: Agent, Key: "clientConnection.contenttype", Want: anyText(), Default: `""`, Effect: Honoured,
			Text: "media type that the agent sends to the API server; empty: protobuf",
			set:  func(c *values, v Value) { c.ClientConnection.ContentType = v.Str }},
		{In: Agent, Key: "clientConnection.qps", Want: integer(0, 1<<31-1), Default: "0", Effect: Honoured,
			Text: "maximum number of requests per second to the API server; 0 means 50",
			set:  func(c *values, v Value) { c.ClientConnection.QPS = v.Int }},
		{In: Agent, Key: "clientConnection.burst", Want: integer(0, 1<<31-1), Default: "0", Effect: Honoured,
			Text: "maximum burst of requests to the API server; 0 means 100",
			set:  func(c *values, v Value) { c.ClientConnection.Burst = v.Int }},

		{In: Agent, Key: "apiAddress", Want: address(), Default: "127.0.0.1", Effect: Honoured,
			Text: "Fairlead's own: the address apiPort listens on. Antrea listens on all",
			set:  func(c *values, v Value) { c.APIAddress = v.Addr }},
		{In: Agent, Key: "manifestsDir", Want: path(4095), Default: `""`, Effect: Honoured,
			Text: "Fairlead's own: a directory of Node, Pod, Namespace, IPPool and NetworkPolicy manifests that the agent " +
				"follows instead of the Kubernetes API",
			set: func(c *values, v Value) { c.ManifestsDir = v.Str }},
		{In: Agent, Key: "uplink.mode", Want: oneOf(api.UplinkAuto, api.UplinkSteer, api.UplinkBridge), Default: api.UplinkAuto,
			Effect: Honoured,
			Text: "Fairlead's own: with enableBridgingMode, how bridged pods are connected to the underlay. `steer`: eBPF programs direct the frames of the node's NIC, which stays with the host. `bridge`: the NIC becomes a port of Open vSwitch. " +
				"`auto`: `steer` where the kernel supports it, else `bridge`; see [What happens to my NIC](uplink.md)",
			set: func(c *values, v Value) { c.Uplink.Mode = v.Str }},
		{In: Agent, Key: "uplink.rollbackAfter", Want: duration(10*time.Minute, ", at most 10m"), Default: "30s",
			Effect: Honoured,
			Text:   "Fairlead's own: with enableBridgingMode, how long the default gateway and the API server may be unreachable after the node's NIC was attached, before the attach is rolled back",
			set:    func(c *values, v Value) { c.Uplink.RollbackAfter = v.Duration }},
		{In: Agent, Key: "uplink.allowManaged", Want: boolean(), Default: "false", Effect: Honoured,
			Text: "Fairlead's own: with enableBridgingMode, attaches the NIC although NetworkManager or systemd-networkd manages it. Set it if you know that they do not change an interface that is configured",
			set:  func(c *values, v Value) { c.Uplink.AllowManaged = v.Bool }},
		{In: Agent, Key: "podCIDRWait", Want: duration(10*time.Minute, ", at most 10m"), Default: "10s", Effect: Honoured,
			Text: "Fairlead's own: how long to wait for the Node's podCIDR before the agent exits with code 78",
			set:  func(c *values, v Value) { c.PodCIDRWait = v.Duration }},
		{In: Agent, Key: "ipam.conflictProbeTimeout", Want: duration(10*time.Second, ", at most 10s"), Default: "200ms",
			Effect: Honoured,
			Text:   "Fairlead's own: how long to probe the underlay for another user of an IPPool's address before a pod gets it; 0s disables the probe",
			set:    func(c *values, v Value) { c.IPAM.ConflictProbeTimeout = v.Duration }},
		{In: Agent, Key: "ipam.coolingPeriod", Want: duration(api.MaxCoolingPeriod, ", at most 1h"), Default: "30s", Effect: Honoured,
			Text: "Fairlead's own: how long a released address of an IPPool is not allocated again, unless the pool is full",
			set:  func(c *values, v Value) { c.IPAM.CoolingPeriod = v.Duration }},
		{In: Agent, Key: "ipam.allocationsDir", Want: path(4095), Default: "/var/lib/fairlead/allocations", Effect: Honoured,
			Text: "Fairlead's own: the directory of IPPools' allocations, if manifestsDir is set. Nodes that share IPPools share this directory",
			set:  func(c *values, v Value) { c.IPAM.AllocationsDir = v.Str }},
	}
}
