package steer

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
)

// From is where a frame came from.
type From int

// To is where it went. ToBoth: to the pods and to the others, as for broadcast.
type To int

// The sources and destinations of frames.
const (
	FromUnderlay From = iota
	FromHost
	FromPods
	froms
)

const (
	ToHost To = iota
	ToUnderlay
	ToPods
	ToBoth
	Dropped
	tos
)

// verdicts is the size of the counter map.
const verdicts = uint32(froms) * uint32(tos)

func (f From) String() string { return [froms]string{"underlay", "host", "pods"}[f] }

func (t To) String() string { return [tos]string{"host", "underlay", "pods", "both", "dropped"}[t] }

func indexOf(f From, t To) uint32 { return uint32(f)*uint32(tos) + uint32(t) }

// possible reports whether a program can count this combination.
func possible(f From, t To) bool {
	switch f {
	case FromUnderlay:
		return t == ToHost || t == ToPods || t == ToBoth
	case FromHost:
		return t == ToUnderlay || t == ToPods || t == ToBoth
	}
	return t != ToPods
}

// Count is how many frames went from Source to Way since the programs were attached. A frame merged by GRO, or yet to
// be segmented by TSO, counts as one.
type Count struct {
	From   From   `json:"-"`
	To     To     `json:"-"`
	Source string `json:"from"`
	Way    string `json:"to"`
	Frames uint64 `json:"frames"`
	Bytes  uint64 `json:"bytes"`
}

// Counts reads all counts, in a fixed order. Without programs there are none.
func (c Config) Counts() ([]Count, error) {
	m, err := ebpf.LoadPinnedMap(c.pin("count"), &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening the map of counters: %w", err)
	}
	defer m.Close()
	var out []Count
	for f := range froms {
		for t := range tos {
			if !possible(f, t) {
				continue
			}
			var each []struct{ Frames, Bytes uint64 }
			if err := m.Lookup(indexOf(f, t), &each); err != nil {
				return nil, fmt.Errorf("reading the map of counters: %w", err)
			}
			sum := Count{From: f, To: t, Source: f.String(), Way: t.String()}
			for _, processor := range each {
				sum.Frames += processor.Frames
				sum.Bytes += processor.Bytes
			}
			out = append(out, sum)
		}
	}
	return out, nil
}
