package openflow

import (
	"fmt"
	"hash/fnv"
	"strconv"
)

// Kind is the purpose of a flow. It is part of the flow's cookie.
type Kind uint8

const (
	// KindBase is a flow that every node has.
	KindBase Kind = 1
	// KindGateway is a flow of the gateway port or the node's own podCIDRs.
	KindGateway Kind = 2
	// KindPod is a flow of one pod.
	KindPod Kind = 3
	// KindPeer is a flow of one other node.
	KindPeer Kind = 4
	// KindUplink is a flow for underlay frames.
	KindUplink Kind = 5
	// KindService is a flow of Services.
	KindService Kind = 6
	// KindPolicy is a flow of policies. All of these belong to Units, as do those of the next two kinds.
	KindPolicy Kind = 7
	// KindPolicyTwin is a flow of policies that duplicates others: if they are missing it still keeps packets out.
	KindPolicyTwin Kind = 8
	// KindVerdict is a flow of policies that accepts or denies what it matches, so that the switch counts it.
	KindVerdict Kind = 9
	// KindRenewal is a flow that changes with each change: see [Switch.RenewWith].
	KindRenewal Kind = 10
)

// OfPolicies reports whether k is one of the kinds of policies.
func (k Kind) OfPolicies() bool { return k == KindPolicy || k == KindPolicyTwin || k == KindVerdict }

// Numbers of the tables.
const (
	TableClassify = 0
	TableResolve  = 1
	TableService  = 2 // package clusterip has its flows, and those of the tables after Output
	TableForward  = 3
	TableOutput   = 4
	TableAffinity = 8 // holds what packets have added: which clients of Services have which endpoint
	TableEndpoint = 9
)

// Flow is one flow of the bridge: a plain value. Table, Priority and Match
// together identify it. A Flow without Actions drops.
type Flow struct {
	Table    uint8
	Priority uint16 // the higher one wins
	Kind     Kind
	Match    Match
	Actions  []Action
}

// Key is what identifies a flow in OpenFlow (OpenFlow 1.5.1, section 6.4: "A flow table entry is identified by its
// match fields and priority").
type Key struct {
	table    uint8
	priority uint16
	match    Match
}

// Key returns what identifies f on the switch.
func (f Flow) Key() Key { return Key{f.Table, f.Priority, f.Match} }

const cookieMagic = 0x666c // "fl"

// Cookie is the flow's cookie on the switch; the package comment shows its layout.
func (f Flow) Cookie() uint64 {
	cookie, _ := f.cookieIn(make([]byte, 0, 256)) // usually enough
	return cookie
}

// cookieIn returns the cookie, and the buffer of its text, for the next flow to reuse.
func (f *Flow) cookieIn(room []byte) (cookie uint64, used []byte) {
	room = f.appendText(room[:0])
	h := fnv.New32a()
	h.Write(room)
	return cookieMagic<<48 | uint64(f.Kind)<<40 | uint64(h.Sum32()), room
}

// KindOf returns the kind in a cookie of Fairlead, and 0 for any other cookie.
func KindOf(cookie uint64) Kind {
	if cookie>>48 != cookieMagic {
		return 0
	}
	return Kind(cookie >> 40)
}

// String returns the flow as "ovs-ofctl --no-stats dump-flows" prints it.
func (f Flow) String() string {
	table := ""
	if f.Table != 0 {
		table = fmt.Sprintf("table=%d, ", f.Table)
	}
	return fmt.Sprintf("cookie=%#x, %s%s", f.Cookie(), table, f.text())
}

// text is the flow without table and cookie.
func (f Flow) text() string { return string(f.appendText(nil)) }

func (f *Flow) appendText(b []byte) []byte {
	b = f.Match.appendText(append(strconv.AppendUint(append(b, "priority="...), uint64(f.Priority), 10), ','))
	b = append(b[:len(b)-1], " actions="...)
	for _, a := range f.Actions {
		b = append(append(b, a.String()...), ',')
	}
	if len(f.Actions) == 0 {
		b = append(b, "drop,"...)
	}
	return b[:len(b)-1]
}
