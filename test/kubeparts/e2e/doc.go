// Package e2e has only a test: Kubernetes' own end-to-end tests of the network, compiled from its module. The other
// end-to-end tests, of storage and so on, would take minutes more to compile.
package e2e
