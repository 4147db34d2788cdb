// Package seen keeps track of which parts of things that shall be there were found in a list, without keeping either.
package seen

import "hash/maphash"

// Set are the parts that are expected, by hashes of 64 bits. Each Set has a seed of its own: two that are taken for
// one, which one list in 10^11 of 10,000 may have, are not in the next.
type Set struct {
	h     maphash.Hash
	parts map[uint64]part
}

type part struct {
	of   uint32 // the number of the thing
	seen bool
}

// New returns a Set with room for so many parts.
func New(size int) *Set { return &Set{parts: make(map[uint64]part, size)} }

// Part writes to h what a part is: all that tells it from others.
type Part func(h *maphash.Hash)

func (s *Set) hash(p Part) uint64 {
	s.h.Reset() // but for its seed
	p(&s.h)
	return s.h.Sum64()
}

// Expect adds a part of a thing.
func (s *Set) Expect(p Part, of uint32) { s.parts[s.hash(p)] = part{of: of} }

// See reports whether the part is expected, and notes that it is there.
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

// Incomplete are the things of which a part was not seen.
func (s *Set) Incomplete() map[uint32]struct{} {
	out := map[uint32]struct{}{}
	for _, p := range s.parts {
		if !p.seen {
			out[p.of] = struct{}{}
		}
	}
	return out
}
