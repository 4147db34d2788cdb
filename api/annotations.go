package api

// The annotations by which a Pod or its Namespace asks for a bridged pod, as in
// Antrea.
const (
	AnnotationPools  = "ipam.antrea.io/ippools"
	AnnotationPodIPs = "ipam.antrea.io/pod-ips"
)
