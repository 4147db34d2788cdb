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
	TunnelSTT    = "stt"
)

// AgentConfig is what fairlead-agent takes from its config file: every key that
// has an effect, checked, with the default where the file does not name it.
// Key names, defaults and the keys without effect are in docs/config.md.
type AgentConfig struct {
	// OVSBridge is the bridge that carries the pods, and OVSRunDir the
	// directory with db.sock and BRIDGE.mgmt of the node's Open vSwitch.
	OVSBridge string
	OVSRunDir string
	// OVSDatapathType is DatapathSystem or DatapathNetdev.
	OVSDatapathType string
	// HostGateway is the internal port of OVSBridge that joins pods and host.
	HostGateway string

	// TrafficEncapMode is ModeEncap, ModeNoEncap or ModeHybrid.
	TrafficEncapMode string
	// TunnelType is TunnelGeneve, TunnelVXLAN, TunnelGRE or TunnelSTT.
	TunnelType string
	// TunnelPort is the destination port, UDP or TCP. 0: the port that IANA
	// assigned to TunnelType. GRE has none.
	TunnelPort int
	// TunnelCsum asks for checksums in the outer header.
	TunnelCsum bool

	// TransportInterface names the interface whose address other nodes send
	// tunnel packets to. Empty: the one with an address in one of
	// TransportInterfaceCIDRs; those empty too: the one with the Node's IP.
	TransportInterface      string
	TransportInterfaceCIDRs []netip.Prefix
	// DefaultMTU is the MTU in bytes of the gateway and of the pods'
	// interfaces. 0: that of the transport interface less the tunnel's overhead.
	DefaultMTU int
	// DisableTXChecksumOffload switches tx checksum offload off in pods.
	DisableTXChecksumOffload bool

	// ServiceCIDR (IPv4) and ServiceCIDRv6 are the ranges of the cluster's
	// Services, which bridged pods reach through their node. Invalid: none.
	ServiceCIDR, ServiceCIDRv6 netip.Prefix

	// NoSNAT leaves the pods' own address on packets to the outside.
	NoSNAT bool
	// SNATFullyRandomPorts asks the masquerade for random source ports.
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

// MaxCoolingPeriod bounds IPAM.CoolingPeriod.
const MaxCoolingPeriod = time.Hour

// IPAM is how addresses of IPPools are given.
type IPAM struct {
	// ConflictProbeTimeout is how long the underlay is asked who uses an address.
	// 0: it is not asked.
	ConflictProbeTimeout time.Duration
	// CoolingPeriod is how long an address that was given back is not given again.
	CoolingPeriod time.Duration
	// AllocationsDir is where allocations are kept where ManifestsDir is set.
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

// Modes of the uplink. Steer: eBPF programs sort the NIC's frames, and the host keeps it. Bridge: the NIC is a port of
// Open vSwitch, and the host's addresses are on a port of the bridge. Auto: steer where that is possible, else bridge.
const (
	UplinkSteer  = "steer"
	UplinkBridge = "bridge"
	UplinkAuto   = "auto"
)

// UplinkConfig is how the node's NIC becomes a port of Open vSwitch.
type UplinkConfig struct {
	// Mode is UplinkSteer, UplinkBridge or UplinkAuto.
	Mode string
	// RollbackAfter is how long the node may be out of reach before it is taken
	// back.
	RollbackAfter time.Duration
	// AllowManaged takes a NIC that a network manager has in its care.
	AllowManaged bool
}

// ClientConnection is how the agent calls the Kubernetes API.
type ClientConnection struct {
	// Kubeconfig is the path of a kubeconfig file. Empty: the ServiceAccount of
	// the agent's pod.
	Kubeconfig string
	// ContentType and AcceptContentTypes are media types of what is sent and of
	// what is taken, as HTTP has them. Empty: protobuf.
	ContentType, AcceptContentTypes string
	// QPS and Burst limit the requests of the agent, in requests a second and
	// in requests at once. 0: 50 and 100.
	QPS, Burst int
}
