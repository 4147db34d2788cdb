package steer

import (
	"testing"

	"github.com/cilium/ebpf/asm"
)

// Each access is aligned to its size, which the kernel requires on processors without unaligned access, and a number
// from the frame's header is converted to host byte order before it is used, unless it is only copied.
func TestAccessesAreAlignedAndInOrder(t *testing.T) {
	for _, h := range hooks() {
		all := plan{nic: 1, port: 2}.code(h)
		for i, ins := range all {
			class := ins.OpCode.Class()
			if class != asm.LdXClass && class != asm.StXClass {
				continue
			}
			size := ins.OpCode.Size()
			if int(ins.Offset)%size.Sizeof() != 0 {
				t.Errorf("%s, %d: %v is not aligned", h.name, i, ins)
			}
			header := class == asm.LdXClass && ins.Src == asm.RFP && ins.Offset >= dstAt
			proto := class == asm.LdXClass && ins.Src == frame && ins.Offset == skbVLANProto
			if !proto && (!header || size == asm.Byte) {
				continue
			}
			if proto { // 16 bits of a 32-bit word
				size = asm.Half
			}
			after, swap := all[i+1], asm.HostTo(asm.BE, ins.Dst, size)
			copied := after.OpCode.Class() == asm.StXClass && after.Src == ins.Dst
			swapped := after.OpCode == swap.OpCode && after.Dst == swap.Dst && after.Constant == swap.Constant
			if !copied && !swapped {
				t.Errorf("%s, %d: %v is used in the frame's byte order: %v", h.name, i, ins, after)
			}
		}
	}
}
