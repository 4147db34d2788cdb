// Package pool says which addresses an IPPool has and whether it is valid. It is
// the one validation: agents and controller, with the Kubernetes API or with a
// directory of manifests, hand out what Read returns and nothing else. The schema
// of the CustomResourceDefinition and the admission policy only say some of it
// earlier.
package pool

import (
	"net/netip"
)

// Pool is a valid IPPool.
type Pool struct {
	// Name is the IPPool's.
	Name string
	// Scope is the isolated network of the addresses. Empty: they are pods'.
	Scope string
	// Family is 4 or 6.
	Family int
	// Ranges are as written, in that order. They do not overlap.
	Ranges []Range
	// Free are addresses that the controller has last seen free: a hint.
	Free []Span

	spans []span // what may be handed out, in the order of addresses
}

// Range is one range of a pool and the subnet of the underlay that it lies in.
type Range struct {
	First, Last netip.Addr
	// Gateway is the underlay's router. With IPv6 it may be link-local.
	Gateway netip.Addr
	// Bits is the length of the subnet's prefix.
	Bits int
	// VLAN is the tag on the wire; 0 is untagged.
	VLAN uint16
}

// Span is the addresses from First to Last.
type Span struct{ First, Last netip.Addr }

// span is addresses of one range that may be handed out.
type span struct {
	Span
	of int // index in Ranges
}
