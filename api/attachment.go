package api

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// MAC is an Ethernet address (EUI-48). Unlike net.HardwareAddr it can be
// compared with == and used as a map key.
type MAC [6]byte

// ParseMAC parses the colon form, aa:bb:cc:dd:ee:ff.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil {
		return MAC{}, err
	}
	if len(hw) != 6 {
		return MAC{}, fmt.Errorf("%q is not an Ethernet address of 6 bytes", s)
	}
	return MAC(hw), nil
}

// String returns the colon form in lower case.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// LinkLocal returns the IPv6 link-local address that the kernel derives from m (modified EUI-64, RFC 4291 appendix A).
func (m MAC) LinkLocal() netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80,
		8: m[0] ^ 0x02, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

// MaxVLAN is the highest VLAN ID (IEEE 802.1Q, which reserves 4095).
const MaxVLAN = 4094

// LocalMAC returns a locally administered unicast address (IEEE 802, section 8) derived from seed, deterministically.
func LocalMAC(seed string) MAC {
	sum := sha256.Sum256([]byte(seed))
	m := MAC(sum[:6])
	m[0] = m[0]&^0x01 | 0x02
	return m
}

// Attachment is one network interface of one pod: what a CNI ADD creates and a CNI DEL removes. Its record is in OVSDB,
// in the external_ids of the pod's Port, and nowhere else on the node.
type Attachment struct {
	// ContainerID and IfName are CNI_CONTAINERID and CNI_IFNAME. Together
	// they identify the attachment.
	ContainerID string
	IfName      string
	// Netns is CNI_NETNS, the path of the pod's network namespace.
	Netns string
	// Network is the name in the CNI network configuration.
	Network string
	// PodNamespace, PodName and PodUID come from CNI_ARGS (K8S_POD_*). All three are empty if the caller is not
	// Kubernetes.
	PodNamespace string
	PodName      string
	PodUID       string
	// HostIf is the host end of the pod's veth and the name of its OVS port.
	HostIf string
	MAC    MAC
	// Addrs are the pod's addresses with the mask on its interface, at most one of each family.
	Addrs []netip.Prefix
	// Bridged: the addresses are of IPPools, not of the node's podCIDRs, and the pod's frames are sent to the underlay.
	// The fields below are zero without it.
	Bridged bool
	// VLAN is the ID of the pod's frames on the underlay, 1 to MaxVLAN; 0: untagged.
	VLAN uint16
	// Pools are the names of the IPPools, one for each of Addrs in their order.
	Pools []string
	// Gateways are the pools' gateways, at most one of each family.
	Gateways []netip.Addr
	// BootID is /proc/sys/kernel/random/boot_id at the time of the ADD: an attachment of another boot is stale.
	BootID string
}

// ReachEnd is the container ID of the attachment that other nodes probe, which belongs to no pod, and the name of its
// network namespace.
const ReachEnd = "fairlead-reach"

// OfPods returns the attachments that belong to pods.
func OfPods(attachments []Attachment) []Attachment {
	return slices.DeleteFunc(slices.Clone(attachments), func(a Attachment) bool { return a.ContainerID == ReachEnd })
}

// Pod returns "namespace/name", or the container ID if the pod is unknown.
func (a Attachment) Pod() string {
	if a.PodName == "" {
		return a.ContainerID
	}
	return a.PodNamespace + "/" + a.PodName
}

// Equal reports whether a and b are equal.
func (a Attachment) Equal(b Attachment) bool {
	return slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.Pools, b.Pools) && slices.Equal(a.Gateways, b.Gateways) &&
		a.Bridged == b.Bridged && a.VLAN == b.VLAN &&
		a.ContainerID == b.ContainerID && a.IfName == b.IfName && a.Netns == b.Netns && a.Network == b.Network &&
		a.PodNamespace == b.PodNamespace && a.PodName == b.PodName && a.PodUID == b.PodUID &&
		a.HostIf == b.HostIf && a.MAC == b.MAC && a.BootID == b.BootID
}
