// Package openflow has flows as values, with their text as ovs-ofctl prints it, and the connection that installs them.
// Which flows a node has is in packages of their own: tables (start there: a packet's journey) and clusterip.
//
// A [Switch] makes the bridge br-int have the flows that it is given and no others. What there are tens of thousands
// of, the ports of Services, it keeps by number, each a [Unit] with a difference of its own.
//
// # Ownership
//
// br-int belongs to Fairlead alone, so every flow and every group on it that was not asked for is removed. A flow is
// recognised by its cookie:
//
//	63      48 47   40 39   32 31                      0
//	[  "fl"  ] [ kind ] [  0  ] [ hash of match, actions ]
//
// The kind (base, gateway, pod, peer, uplink, service, those of policies, renewal) is for people who read a dump. The
// hash tells a dump's reader that a flow was altered, but not surely, as a third party's mod-flows keeps the cookie; a
// resync compares the actions.
//
// # Adding a field or an action
//
// A field is a row of the table fields, and a field of [Match] if flows match it. Decoding, encoding and text follow
// from it, and tests try random values of it on a real switch. An action is a Go type with its text in action.go, what
// it is in a message in codec.go, and a row of the table actionTypes.
package openflow
