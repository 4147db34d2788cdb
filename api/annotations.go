package api

// The annotations by which a Pod or its Namespace asks for a bridged pod, as in
// Antrea.
const (
	AnnotationPools  = "ipam.antrea.io/ippools"
	AnnotationPodIPs = "ipam.antrea.io/pod-ips"
)

// AnnotationNetwork on an IPPool names the isolated network whose addresses it
// has: pools of different networks may have the same ones. It is a DNS label.
// Pools without it have addresses of pods, which are unique in the cluster.
const AnnotationNetwork = "ipam.fairlead.dev/network"
