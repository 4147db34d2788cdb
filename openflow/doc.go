// Package openflow has flows as values, with their text as ovs-ofctl prints it, and the connection that installs them.
// Other packages decide which flows a node has: tables (start there: a packet's journey) and clusterip.
//
// A [Switch] makes the bridge br-int have exactly the flows that it is given. The ports of Services, of which there may
// be tens of thousands, are kept by number, each as a [Unit] that is compared separately.
//
// # Ownership
//
// br-int belongs to Fairlead alone, so every unwanted flow and group on it is removed. A flow is recognised by its
// cookie:
//
//	63      48 47   40 39   32 31                      0
//	[  "fl"  ] [ kind ] [  0  ] [ hash of match, actions ]
//
// The kind (base, gateway, pod, peer, uplink, service, those of policies, renewal) is for people who read a dump. The
// hash may show that a flow was altered, but not reliably, as an external mod-flows keeps the cookie; a resync compares
// the actions.
//
// # Adding a field or an action
//
// A field is a row of the table fields, and a field of [Match] if flows match it. Decoding, encoding and text follow
// from it, and tests try random values of it on a real switch. An action is a Go type with its text in action.go, its
// encoding in codec.go, and a row of the table actionTypes.
package openflow
