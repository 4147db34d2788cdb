package seen

import "hash/maphash"

// Digest is that of a list of parts, whatever their order. Two lists with the same one are the same, as far as 64 bits
// can tell.
type Digest struct {
	hash  maphash.Hash
	sum   uint64
	parts int
}

// Anew returns the Digest of no parts. It can be compared with d.
func (d *Digest) Anew() *Digest {
	e := &Digest{}
	e.hash.SetSeed(d.hash.Seed())
	return e
}

// Add adds a part, which is given in pieces.
func (d *Digest) Add(pieces ...[]byte) {
	d.hash.Reset() // but for its seed
	for _, piece := range pieces {
		d.hash.Write(piece)
	}
	d.sum += d.hash.Sum64()
	d.parts++
}

// Equal reports whether d and e, of which one was made anew from the other, are of the same parts.
func (d *Digest) Equal(e *Digest) bool { return d.sum == e.sum && d.parts == e.parts }
