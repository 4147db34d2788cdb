package capture

import (
	"fmt"
	"math"

	"golang.org/x/net/bpf"
)

// program is a kernel filter (Linux Documentation/networking/filter.rst) with named jump targets.
type program struct {
	steps []step
	at    map[string]int // label to step
}

// step is an instruction. A jump names its targets; the empty name is the next step.
type step struct {
	bpf.Instruction
	yes, no string
}

func (p *program) add(list ...bpf.Instruction) {
	for _, i := range list {
		p.steps = append(p.steps, step{Instruction: i})
	}
}

func (p *program) label(name string) { p.at[name] = len(p.steps) }

// is compares the accumulator.
func (p *program) is(value uint32, yes, no string) {
	p.steps = append(p.steps, step{bpf.JumpIf{Cond: bpf.JumpEqual, Val: value}, yes, no})
}

// has tests bits of the accumulator.
func (p *program) has(bits uint32, yes, no string) {
	p.steps = append(p.steps, step{bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: bits}, yes, no})
}

// jump always jumps.
func (p *program) jump(to string) { p.steps = append(p.steps, step{bpf.Jump{}, to, ""}) }

// load reads size bytes at the offset from the register X.
func (p *program) load(offset uint32, size int) { p.add(bpf.LoadIndirect{Off: offset, Size: size}) }

// link replaces names with distances.
func (p *program) link() ([]bpf.Instruction, error) {
	var out []bpf.Instruction
	for i, s := range p.steps {
		distance := func(to string) (skip int) {
			at, known := p.at[to]
			switch {
			case to == "":
				return 0
			case !known || at <= i:
				return -1
			}
			return at - i - 1
		}
		yes, no := distance(s.yes), distance(s.no)
		if yes < 0 || no < 0 {
			return nil, fmt.Errorf("the filter's step %d cannot jump to %q or %q", i, s.yes, s.no)
		}
		switch jump := s.Instruction.(type) {
		case bpf.Jump:
			s.Instruction = bpf.Jump{Skip: uint32(yes)}
		case bpf.JumpIf:
			if yes > math.MaxUint8 || no > math.MaxUint8 {
				return nil, fmt.Errorf("the filter's step %d cannot jump as far as %q or %q", i, s.yes, s.no)
			}
			jump.SkipTrue, jump.SkipFalse = uint8(yes), uint8(no)
			s.Instruction = jump
		}
		out = append(out, s.Instruction)
	}
	return out, nil
}
