// Package bed runs a real Kubernetes cluster on one machine: every node has its own namespaces, container runtime and
// kubelet, with all paths where a distribution has them, and the control plane has a scheduler and a node lifecycle
// controller.
// Nothing on the nodes comes from Fairlead: they are NotReady until its manifests are applied, or until BridgeCNI.
//
// Nodes are hosts of package host with a process 1, on an underlay of package underlay in mode Bridge: a switch with
// the VLANs 10 and 20, a router with a leg in each, and the host outside behind it. A bed keeps everything in one
// directory, /run/fairlead-bed or /run/fairlead-bed-NAME, a tmpfs, and in cgroups of that name. The process that uses
// the bed holds its lock; a bed whose lock is not held was left by a killed test, or was created manually.
package bed
