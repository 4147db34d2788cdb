// Package functions tests on real nodes with Fairlead what users of Kubernetes expect of a network.
package functions
