package api

// The annotations by which a Pod or its Namespace asks for a bridged pod, as in
// Antrea.
const (
	AnnotationPools  = "ipam.antrea.io/ippools"
	AnnotationPodIPs = "ipam.antrea.io/pod-ips"
)

// AnnotationSticky on a Pod asks that its successor gets the same address, where that
// is not so anyway (it is for StatefulSets). The values are StickyAddress and StickyMAC.
const AnnotationSticky = "ipam.fairlead.dev/sticky"

// Values of AnnotationSticky.
const (
	// StickyAddress: the address is kept.
	StickyAddress = "address"
	// StickyMAC: the address and the MAC are kept.
	StickyMAC = "mac"
)

// AnnotationNetwork on an IPPool names the isolated network whose addresses it
// has: pools of different networks may have the same ones. It is a DNS label.
// Pools without it have addresses of pods, which are unique in the cluster.
const AnnotationNetwork = "ipam.fairlead.dev/network"
