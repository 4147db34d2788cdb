package api

import (
	"net/netip"
	"time"
)

// Values of AgentConfig.OVSDatapathType: the kernel's datapath and the
// userspace one (ovs-vswitchd.conf.db(5), Bridge datapath_type).
const (
	DatapathSystem = "system"
	DatapathNetdev = "netdev"
)

// Values of AgentConfig.TrafficEncapMode: traffic between nodes goes through
// the tunnel always, never, or only to nodes of another subnet.
const (
	ModeEncap   = "encap"
	ModeNoEncap = "noEncap"
	ModeHybrid  = "hybrid"
)

// Values of AgentConfig.TunnelType: types of a tunnel Interface in OVSDB.
const (
	TunnelGeneve = "geneve"
	TunnelVXLAN  = "vxlan"
	TunnelGRE    = "gre"
)

// AgentConfig is fairlead-agent's config file: every key that has an effect, validated, with the default if the file
// does not set it. Key names, defaults and the keys without effect are in docs/config.md.
type AgentConfig struct {
	// OVSBridge is the bridge that carries the pods, and OVSRunDir the
	// directory with db.sock and BRIDGE.mgmt of the node's Open vSwitch.
	OVSBridge string
	OVSRunDir string
	// OVSDatapathType is DatapathSystem or DatapathNetdev.
	OVSDatapathType string
	// HostGateway is the internal port of OVSBridge that connects pods and host.
	HostGateway string

	// TrafficEncapMode is ModeEncap, ModeNoEncap or ModeHybrid.
	TrafficEncapMode string
	// TunnelType is TunnelGeneve, TunnelVXLAN or TunnelGRE.
	TunnelType string
	// TunnelPort is the UDP destination port. 0: the port that IANA
	// assigned to TunnelType. GRE has none.
	TunnelPort int
	// TunnelCsum enables checksums in the outer header.
	TunnelCsum bool

	// TransportInterface names the interface whose address other nodes send
	// tunnel packets to, or is a pattern of path.Match that fits it. Empty: the
	// one with an address in one of TransportInterfaceCIDRs; those empty too:
	// the one with the Node's IP.
	TransportInterface      string
	TransportInterfaceCIDRs []netip.Prefix
	// DefaultMTU is the MTU in bytes of the gateway and of the pods'
	// interfaces. 0: that of the transport interface less the tunnel's overhead.
	DefaultMTU int
	// DisableTXChecksumOffload disables tx checksum offload in pods.
	DisableTXChecksumOffload bool

	// ServiceCIDR (IPv4) and ServiceCIDRv6 are the ranges of the cluster's
	// Services, which bridged pods reach through their node. Invalid: none.
	ServiceCIDR, ServiceCIDRv6 netip.Prefix
	// Services is ServicesHost or ServicesOVS.
	Services string
	// NetworkPolicies is PoliciesReport or PoliciesEnforce.
	NetworkPolicies string
	// PolicyStart is PolicyStartWait, which lasts for PolicyStartWait from the agent's start, or PolicyStartClosed.
	PolicyStart     string
	PolicyStartWait time.Duration
	// PolicyLogDenied is PolicyLogNone, PolicyLogAnnotated or PolicyLogAll.
	PolicyLogDenied string

	// Reachability is ReachabilityNone or ReachabilityProbe.
	Reachability string

	// NoSNAT disables the masquerade: packets to the outside keep the pod's address.
	NoSNAT bool
	// SNATFullyRandomPorts uses random source ports in the masquerade.
	SNATFullyRandomPorts bool

	// CNISocket is the unix socket that the CNI shim calls.
	CNISocket string
	// APIAddress and APIPort (TCP) are where /healthz, /readyz and, if
	// EnablePrometheusMetrics, /metrics are served.
	APIAddress              netip.Addr
	APIPort                 int
	EnablePrometheusMetrics bool

	// ManifestsDir is the directory that Node, Pod, Namespace and NetworkPolicy
	// are read from. Empty: from the Kubernetes API.
	ManifestsDir string
	// KubeAPIServerOverride is a host, host:port or URL that replaces the API
	// server of the kubeconfig or of the pod's environment. Empty: no other.
	KubeAPIServerOverride string
	ClientConnection      ClientConnection
	// PodCIDRWait is how long to wait for the Node's podCIDR at the start.
	PodCIDRWait time.Duration
	// EnableBridgingMode: pods may have addresses of IPPools, and the node needs no
	// podCIDR.
	EnableBridgingMode bool
	Uplink             UplinkConfig
	IPAM               IPAM
}

// Who translates ClusterIPs for pods: the node's kube-proxy, or Open vSwitch.
const (
	ServicesHost = "host"
	ServicesOVS  = "ovs"
)

// Handling of NetworkPolicies and ClusterNetworkPolicies: they are reported as not enforced, or enforced.
const (
	PoliciesReport  = "report"
	PoliciesEnforce = "enforce"
)

// Handling of new pods while policies are not known: they are not added yet, or only their node reaches them.
const (
	PolicyStartWait   = "wait"
	PolicyStartClosed = "closed"
)

// Pods whose denied packets the agent logs: none, those of Namespaces with AnnotationLogDenied, or all.
const (
	PolicyLogNone      = "none"
	PolicyLogAnnotated = "annotated"
	PolicyLogAll       = "all"
)

// Whether agents probe the paths of pods to other nodes.
const (
	ReachabilityNone  = "none"
	ReachabilityProbe = "probe"
)

// MaxCoolingPeriod bounds IPAM.CoolingPeriod.
const MaxCoolingPeriod = time.Hour

// IPAM configures the allocation of IPPools' addresses.
type IPAM struct {
	// ConflictProbeTimeout is how long to wait for replies to a probe of an address. 0: no probe.
	ConflictProbeTimeout time.Duration
	// CoolingPeriod is how long a released address is not allocated again.
	CoolingPeriod time.Duration
	// AllocationsDir is the directory of allocations if ManifestsDir is set.
	AllocationsDir string
}

// ServiceCIDRs are those that are set, IPv4 first.
func (c AgentConfig) ServiceCIDRs() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range []netip.Prefix{c.ServiceCIDR, c.ServiceCIDRv6} {
		if p.IsValid() {
			out = append(out, p)
		}
	}
	return out
}

// Modes of the uplink. Steer: eBPF programs redirect the NIC's frames, and the host keeps it. Bridge: the NIC is a port
// of Open vSwitch, and the host's addresses are on a port of the bridge. Auto: steer if that is possible, else bridge.
const (
	UplinkSteer  = "steer"
	UplinkBridge = "bridge"
	UplinkAuto   = "auto"
)

// UplinkConfig is how the node's NIC is attached as the uplink.
type UplinkConfig struct {
	// Mode is UplinkSteer, UplinkBridge or UplinkAuto.
	Mode string
	// RollbackAfter is how long the node may be unreachable before the attachment is rolled back.
	RollbackAfter time.Duration
	// AllowManaged allows a NIC that a network manager controls.
	AllowManaged bool
}

// ClientConnection configures requests to the Kubernetes API.
type ClientConnection struct {
	// Kubeconfig is the path of a kubeconfig file. Empty: the ServiceAccount of
	// the agent's pod.
	Kubeconfig string
	// ContentType and AcceptContentTypes are the HTTP media types of requests and of responses. Empty: protobuf.
	ContentType, AcceptContentTypes string
	// QPS and Burst limit the agent's requests per second and at once. 0: 50 and 100.
	QPS, Burst int
}
