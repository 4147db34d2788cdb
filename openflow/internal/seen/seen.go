// Package seen tracks which parts of expected things were found in a list, without keeping either.
package seen

import "hash/maphash"

// Set is the expected parts, by 64-bit hashes. Each Set has its own seed: parts that collide, which happens in one of
// 10^11 lists of 10,000, do not collide in the next.
type Set struct {
	h     maphash.Hash
	parts map[uint64]part
}

type part struct {
	of   uint32 // the number of the thing
	seen bool
}

// New returns a Set with room for size parts.
func New(size int) *Set { return &Set{parts: make(map[uint64]part, size)} }

// Part writes to h all that distinguishes a part from others.
type Part func(h *maphash.Hash)

func (s *Set) hash(p Part) uint64 {
	s.h.Reset() // keeps its seed
	p(&s.h)
	return s.h.Sum64()
}

// Expect adds a part of a thing.
func (s *Set) Expect(p Part, of uint32) { s.parts[s.hash(p)] = part{of: of} }

// See reports whether the part is expected, and records that it was seen.
func (s *Set) See(p Part) bool {
	hash := s.hash(p)
	of, expected := s.parts[hash]
	if of.seen = true; expected {
		s.parts[hash] = of
	}
	return expected
}

// Seen reports whether See was called with the part.
func (s *Set) Seen(p Part) bool { return s.parts[s.hash(p)].seen }

// Incomplete returns the things of which a part was not seen.
func (s *Set) Incomplete() map[uint32]struct{} {
	out := map[uint32]struct{}{}
	for _, p := range s.parts {
		if !p.seen {
			out[p.of] = struct{}{}
		}
	}
	return out
}
