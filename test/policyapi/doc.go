// Package policyapi has only a test: the conformance tests of network-policy-api, in the cluster of the kubeconfig that
// the environment names.
package policyapi
