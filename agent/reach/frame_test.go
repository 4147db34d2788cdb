package reach

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/capture"
	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
)

// inFrame is an Ethernet frame with a UDP packet whose checksum is correct.
func inFrame(from, to netip.Addr, port uint16, payload []byte) []byte {
	udp := slices.Concat([]byte{0xc0, 0x01}, binary.BigEndian.AppendUint16(nil, port),
		binary.BigEndian.AppendUint16(nil, uint16(8+len(payload))), []byte{0, 0}, payload)
	covered := slices.Concat(from.AsSlice(), to.AsSlice(), []byte{0, 17}, udp[4:6], udp)
	if len(covered)%2 == 1 {
		covered = append(covered, 0)
	}
	sum := 0
	for words := covered; len(words) > 0; words = words[2:] {
		if sum += int(words[0])*256 + int(words[1]); sum >= 1<<16 {
			sum -= 1<<16 - 1 // ones' complement
		}
	}
	binary.BigEndian.PutUint16(udp[6:], uint16(1<<16-1-sum))
	length := binary.BigEndian.AppendUint16(nil, uint16(len(udp)))
	head := slices.Concat(make([]byte, 12), []byte{0x86, 0xdd, 0x60, 0, 0, 0}, length, []byte{17, 64})
	if from.Is4() {
		head = slices.Concat(make([]byte, 12), []byte{0x08, 0, 0x45, 0}, make([]byte, 6), []byte{64, 17, 0, 0})
	}
	return slices.Concat(head, from.AsSlice(), to.AsSlice(), udp)
}

// framed is a packet of a path, in a frame with VLAN tags and, if there are nodes, in a tunnel.
type framed struct {
	ends, nodes [2]netip.Addr
	tags        int
	payload     int
}

// data is the frame, and the offsets of its checksums, in order.
func (f framed) data() (data []byte, sums []int) {
	data = inFrame(f.ends[0], f.ends[1], pure.Port, slices.Repeat([]byte{0xa7}, f.payload))
	inner := len(data)
	if f.nodes[0].IsValid() {
		data = inFrame(f.nodes[0], f.nodes[1], 6081, slices.Concat(make([]byte, 8), data))
	}
	data = slices.Insert(data, 12, slices.Repeat([]byte{0x81, 0, 0, 5}, f.tags)...)
	if f.nodes[0].IsValid() {
		sums = append(sums, len(data)-inner-8-2)
	}
	return data, append(sums, len(data)-f.payload-2)
}

// sum is the result for a frame whose content is now data.
func (f framed) sum(t *testing.T, data []byte, unsummed bool) api.Checksums {
	t.Helper()
	l := packetCounter{delivery: delivery{tunnelled: f.nodes[0].IsValid()}}
	p, ok := l.packet(capture.Frame{Data: data, Length: len(data), Unsummed: unsummed}, f.ends[0], f.ends[1])
	if !ok || l.delivery.tunnelled && p.outerSource() != f.nodes[0] {
		t.Fatalf("%+v: found %v, from %s", f, ok, p.outerSource())
	}
	return p.sum()
}

func (f framed) check(t *testing.T) {
	t.Helper()
	data, sums := f.data()
	wants := func(want, got api.Checksums, how string) {
		if got != want {
			t.Errorf("%+v, %s: %q, want %q", f, how, got, want)
		}
	}
	with := func(change func(data []byte)) api.Checksums {
		changed := slices.Clone(data)
		change(changed)
		return f.sum(t, changed, false)
	}
	none := func(data []byte, at int) { copy(data[at:], []byte{0, 0}) } // as in RFC 768
	wants(api.ChecksumsRight, f.sum(t, data, false), "untouched")
	wants(api.ChecksumsOffloaded, f.sum(t, data, true), "left to the device")
	wants("", f.sum(t, data[:len(data)-1], false), "cut off")
	for at := sums[len(sums)-1]; at < len(data); at++ {
		wants(api.ChecksumsWrong, with(func(data []byte) { data[at] ^= 0x10 }), fmt.Sprintf("byte %d changed", at))
		wants(api.ChecksumsWrong, with(func(data []byte) {
			data[at] ^= 0x10
			for _, outer := range sums[:len(sums)-1] {
				none(data, outer)
			}
		}), fmt.Sprintf("byte %d changed, and none of the tunnel", at))
	}
	wants("", with(func(data []byte) {
		for _, at := range sums {
			none(data, at)
		}
	}), "without checksum")
	if len(sums) == 2 {
		wants(api.ChecksumsWrong, with(func(data []byte) { none(data, sums[1]); data[sums[0]] ^= 1 }), "the tunnel's alone")
	}
}

func pair(from, to string) [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr(from), netip.MustParseAddr(to)}
}

// The checksums of a path's packets are checked in each family, without a tunnel and in one, and with VLAN tags.
func TestChecksums(t *testing.T) {
	pods := [][2]netip.Addr{pair("10.77.1.254", "10.77.2.254"), pair("fd77:1::fe", "fd77:2::fe")}
	tunnels := [][2]netip.Addr{{}, pair("192.0.2.1", "192.0.2.2"), pair("fd78::1", "fd78::2")}
	for _, ends := range pods {
		for _, nodes := range tunnels {
			for tags := range 3 {
				framed{ends, nodes, tags, 64}.check(t)
				framed{ends, nodes, tags, 65}.check(t)
			}
		}
	}
}

// A state is reported for all packets only if each of them has it.
func TestSums(t *testing.T) {
	for _, c := range []struct {
		sums
		want api.Checksums
	}{
		{sums{}, ""},
		{sums{right: 3}, api.ChecksumsRight},
		{sums{wrong: 3}, api.ChecksumsWrong},
		{sums{offloaded: 2}, api.ChecksumsOffloaded},
		{sums{right: 1, wrong: 5}, ""},
		{sums{wrong: 2, offloaded: 1}, ""},
	} {
		if got := c.all(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.sums, got, c.want)
		}
	}
}
