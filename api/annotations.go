package api

// The annotations by which a Pod or its Namespace asks for a bridged pod, as in Antrea.
const (
	AnnotationPools  = "ipam.antrea.io/ippools"
	AnnotationPodIPs = "ipam.antrea.io/pod-ips"
)

// AnnotationSticky on a Pod requests the same address for its successor, if that is not the default (it is for
// StatefulSets). The values are StickyAddress and StickyMAC.
const AnnotationSticky = "ipam.fairlead.dev/sticky"

// Values of AnnotationSticky.
const (
	// StickyAddress: the address is reserved.
	StickyAddress = "address"
	// StickyMAC: the address and the MAC are reserved.
	StickyMAC = "mac"
)

// AnnotationLogDenied on a Namespace, with the value true, makes agents log what policies deny its pods.
const AnnotationLogDenied = "policy.fairlead.dev/log-denied"

// AnnotationNetwork on an IPPool names the isolated network of its addresses: pools of different networks may have the
// same ones. It is a DNS label. Pools without it are in the pods' network, where addresses are unique in the cluster.
const AnnotationNetwork = "ipam.fairlead.dev/network"
