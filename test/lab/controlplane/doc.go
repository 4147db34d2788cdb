// Package controlplane runs the control plane of a Kubernetes cluster on one host of a lab: etcd, kube-apiserver and
// kube-controller-manager, the real ones (package kubebin). Each component can be stopped, stalled, and started again
// with other flags.
//
// All of it is in /run/lab on the host: keys and kubeconfigs in pki, etcd's data in etcd, a PID file per component, and
// in PART.flags the flags that were set for it. The processes belong to the host and end with it.
package controlplane
