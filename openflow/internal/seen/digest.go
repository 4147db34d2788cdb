package seen

import "hash/maphash"

// Digest is the digest of a list of parts, regardless of order. Two lists with the same digest are the same, as far as
// 64 bits can tell.
type Digest struct {
	hash  maphash.Hash
	sum   uint64
	parts int
}

// NewEmpty returns the Digest of no parts. It can be compared with d.
func (d *Digest) NewEmpty() *Digest {
	e := &Digest{}
	e.hash.SetSeed(d.hash.Seed())
	return e
}

// Add adds a part, given in pieces.
func (d *Digest) Add(pieces ...[]byte) {
	d.hash.Reset() // keeps its seed
	for _, piece := range pieces {
		d.hash.Write(piece)
	}
	d.sum += d.hash.Sum64()
	d.parts++
}

// Equal reports whether d and e, one created by the other's NewEmpty, are of the same parts.
func (d *Digest) Equal(e *Digest) bool { return d.sum == e.sum && d.parts == e.parts }
