// Package functions tries over Fairlead, on real nodes, what users of Kubernetes expect of a network.
package functions
