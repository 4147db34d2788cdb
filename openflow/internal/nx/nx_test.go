package nx

import (
	"encoding/binary"
	"net/netip"
	"reflect"
	"testing"

	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

func testGroup(hash Hash, addrs ...string) Group {
	g := Group{ID: 7, Hash: hash}
	for i, a := range addrs {
		g.Buckets = append(g.Buckets, Bucket{ID: uint32(i + 3), Action: Conntrack{Commit: true, ZoneReg: 3, Table: 5,
			NAT: NAT{Kind: NATDst, Addr: netip.MustParseAddr(a), First: 8080, Last: 8080}}})
	}
	return g
}

// listed is a list of groups as the switch sends it, made from the messages that add them: an ofp_group_desc differs
// from an ofp_group_mod only in its header.
func listed(groups ...Group) ofconn.Message {
	body := append(binary.BigEndian.AppendUint16(nil, multipartGroup), make([]byte, 6)...)
	for _, g := range groups {
		mod := g.Add(nil, 1)[ofconn.HeaderLen:]
		rest := mod[16:]
		body = binary.BigEndian.AppendUint16(body, uint16(groupDescLen+len(rest)))
		body = append(append(body, mod[2:8]...), mod[8], mod[9], 0, 0, 0, 0, 0, 0)
		body = append(body, rest...)
	}
	return ofconn.Message{Body: body}
}

func readGroups(m ofconn.Message) (out []Listed, err error) {
	err = ReadGroups(m, func(g Listed) { out = append(out, g) })
	return out, err
}

// A group that was sent is read back as the same; one that a Group cannot represent never equals a desired one.
func TestGroupsRoundTrip(t *testing.T) {
	want := []Group{testGroup(Hash{}, "10.0.0.1", "10.0.0.2"), testGroup(Hash{Protocol: tcp}, "10.0.0.1"),
		testGroup(Hash{IPv6: true, Protocol: udp}, "fd00::1", "fd00::2")}
	want = append(want, Group{ID: 8, Hash: Hash{Protocol: udp}, Buckets: []Bucket{{ID: 5, Again: 9}, {ID: 6, Again: 9}}})
	got, err := readGroups(listed(want...))
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d groups, %v", len(got), err)
	}
	for i, g := range got {
		if !g.Known || !g.Equal(want[i]) || g.Equal(want[(i+1)%len(want)]) {
			t.Errorf("sent %+v, read %+v", want[i], g)
		}
	}
	whole := listed(want[0])
	for i := range whole.Body {
		cut := ofconn.Message{Body: whole.Body[:i]}
		if list, err := readGroups(cut); err == nil && len(list) > 0 {
			t.Errorf("cut after %d bytes: %+v", i, list)
		}
		changed := append([]byte(nil), whole.Body...)
		changed[i] ^= 0x11
		list, err := readGroups(ofconn.Message{Body: changed})
		padding := i < 8 || i == 8+3 || i >= 8+10 && i < 8+16 // of the header, and of the group's
		if err == nil && len(list) == 1 && list[0].Known && list[0].Equal(want[0]) && !padding {
			t.Errorf("byte %d is other than sent, and the group is the same", i)
		}
	}
}

// FuzzRead feeds bytes to everything that reads them.
func FuzzRead(f *testing.F) {
	f.Add(listed(testGroup(Hash{Protocol: tcp}, "10.0.0.1")).Body)
	f.Add(Conntrack{Commit: true, Zone: 9, Table: NoTable}.Append(nil))
	f.Add(Learn{Idle: 9, IPv6: true, Protocol: udp}.Append(nil)[4:])
	f.Fuzz(func(t *testing.T, data []byte) {
		if list, err := readGroups(ofconn.Message{Body: data}); err == nil {
			for _, g := range list {
				if again, err := readGroups(listed(g.Group)); g.Known && (err != nil || !reflect.DeepEqual(again[0], g)) {
					t.Errorf("%+v is read as %+v, %v", g, again, err)
				}
			}
		}
		if c, ok := ReadConntrack(data); ok && string(c.Append(nil)[4:]) != string(data) {
			t.Errorf("%+v is written in another way than read", c)
		}
		if l, ok := ReadLearn(data); ok && string(l.Append(nil)[4:]) != string(data) {
			t.Errorf("%+v is written in another way than read", l)
		}
		_, _ = ReadResubmit(data)
	})
}
