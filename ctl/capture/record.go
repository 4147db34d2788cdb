package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Limits bound a capture.
type Limits struct {
	Duration time.Duration
	// Packets and Bytes limit the file, SnapLen is how many bytes of each packet are kept.
	Packets int
	Bytes   int64
	SnapLen int
}

// Recording says how a capture is recorded.
type Recording struct {
	Limits
	// Comment says in the file which command wrote it.
	Comment string
	// Progress is called every second.
	Progress func([]Count)
}

// Count is what was captured from an interface.
type Count struct {
	Interface
	Packets int `json:"packets"`
	// Lost packets arrived faster than they could be captured.
	Lost uint64 `json:"lost"`
}

// Summary is what was captured, and why the capture ended.
type Summary struct {
	File       string  `json:"file,omitempty"`
	Ended      string  `json:"ended"`
	Packets    int     `json:"packets"`
	Bytes      int64   `json:"bytes"`
	Interfaces []Count `json:"interfaces"`
	// Problems are interfaces that were not captured, or not to the end.
	Problems []string `json:"problems,omitempty"`
}

const (
	// flushEvery is how often captured packets are written, for live viewing.
	flushEvery = 100 * time.Millisecond
	// endWait is how long sources may take to send the rest.
	endWait = 10 * time.Second
	// writeWait is how long writing the rest may take: it may go into a pipe whose reader hangs.
	writeWait = 5 * time.Second
)

// arrival is a packet of a source, or its end.
type arrival struct {
	packet
	from Source
	err  error
}

// recorder is a running capture.
type recorder struct {
	Recording
	file    *file
	order   order
	sources []Source
	first   map[Source]int // the number of the source's first interface in the file
	open    int            // how many sources have not ended
	end     *time.Timer    // until the rest must be here; nil: it has not been stopped
	full    bool           // a limit is reached
	summary Summary
}

// Record captures from sources until ctx ends, for its cause, a limit is reached, or all have ended. Whatever
// ends it, the file is whole. The summary is nil on an error.
func Record(ctx context.Context, w io.Writer, sources []Source, how Recording) (*Summary, error) {
	type outcome struct {
		*Summary
		error
	}
	ended := make(chan outcome, 1)
	go func() {
		s, err := record(ctx, w, sources, how)
		ended <- outcome{s, err}
	}()
	select {
	case o := <-ended:
		return o.Summary, o.error
	case <-ctx.Done():
	case <-time.After(how.Duration):
	}
	select {
	case o := <-ended:
		return o.Summary, o.error
	case <-time.After(endWait + writeWait):
		return nil, errors.New("writing packets: they are not taken by the reader")
	}
}

func record(ctx context.Context, w io.Writer, sources []Source, how Recording) (*Summary, error) {
	r := &recorder{Recording: how, sources: sources, first: map[Source]int{}, open: len(sources)}
	var all []Interface
	for _, s := range sources {
		r.first[s] = len(all)
		all = append(all, s.Interfaces()...)
	}
	var err error
	if r.file, err = create(w, how.Comment, how.SnapLen, all); err != nil {
		return nil, fmt.Errorf("writing packets: %w", err)
	}
	arrivals, abandoned := make(chan arrival), make(chan struct{})
	defer close(abandoned)
	for _, s := range sources {
		go r.pump(s, arrivals, abandoned)
	}
	if err := r.run(ctx, arrivals); err != nil {
		return nil, fmt.Errorf("writing packets: %w", err)
	}
	r.count()
	if err := r.file.statistics(time.Now()); err != nil {
		return nil, fmt.Errorf("writing packets: %w", err)
	}
	r.summary.Interfaces, r.summary.Bytes = r.file.counts, r.file.bytes
	return &r.summary, nil
}

// pump passes on the packets of a source until it ends.
func (r *recorder) pump(s Source, to chan<- arrival, abandoned <-chan struct{}) {
	for {
		at, f, err := s.Next()
		select {
		case to <- arrival{packet{f, r.first[s] + at}, s, err}:
		case <-abandoned:
			return
		}
		if err != nil {
			return
		}
	}
}

// run returns when everything is written, or writing has failed.
func (r *recorder) run(ctx context.Context, arrivals <-chan arrival) error {
	begun, shown := time.Now(), time.Now()
	flush := time.NewTicker(flushEvery)
	defer flush.Stop()
	interrupted := ctx.Done()
	var late <-chan time.Time
	for r.open > 0 {
		select {
		case a := <-arrivals:
			r.take(a)
		case <-interrupted:
			r.stop(context.Cause(ctx).Error())
			interrupted = nil
		case <-late:
			r.summary.Problems = append(r.summary.Problems, fmt.Sprintf("%d captures have not sent the rest within %s", r.open, endWait))
			r.open = 0
		case now := <-flush.C:
			if now.Sub(begun) >= r.Duration {
				r.stop(fmt.Sprintf("the duration of %s is over", r.Duration))
			}
			if now.Sub(shown) >= time.Second && r.Progress != nil {
				shown = now
				r.Progress(r.count())
			}
			if err := r.file.w.Flush(); err != nil {
				return err
			}
		}
		if err := r.write(r.order.next); err != nil {
			return err
		}
		if r.end != nil {
			late = r.end.C
		}
	}
	if r.end == nil {
		r.summary.Ended = "all captures have ended"
	}
	return r.write(func(time.Time) (packet, bool) { return r.order.rest() })
}

func (r *recorder) take(a arrival) {
	if a.err == nil {
		r.order.add(a.packet, time.Now())
		return
	}
	r.open--
	if !errors.Is(a.err, io.EOF) {
		r.summary.Problems = append(r.summary.Problems, fmt.Sprintf("%s: %v", a.from, a.err))
	} else { // at a limit, which what it has sent reaches here as well
		r.stop(fmt.Sprintf("%s has ended", a.from))
	}
}

// stop stops the sources, which send the rest of what they have captured.
func (r *recorder) stop(why string) {
	if r.end != nil {
		return
	}
	r.summary.Ended, r.end = why, time.NewTimer(endWait)
	for _, s := range r.sources {
		s.Stop()
	}
}

// limit ends the file.
func (r *recorder) limit(why string) {
	r.stop(why)
	r.full, r.summary.Ended = true, why
}

// write writes the packets that next returns, up to the limits. Everything after the first that does not fit is left
// out: the file is complete up to a point in time.
func (r *recorder) write(next func(time.Time) (packet, bool)) error {
	now := time.Now()
	for p, ok := next(now); ok; p, ok = next(now) {
		switch {
		case r.full:
			continue
		case r.file.bytes+size(p.Frame) > r.Bytes:
			r.limit(fmt.Sprintf("the next packet does not fit in %d bytes", r.Bytes))
			continue
		}
		if err := r.file.write(p); err != nil {
			return err
		}
		if r.summary.Packets++; r.summary.Packets >= r.Packets {
			r.limit(fmt.Sprintf("there are %d packets", r.Packets))
		}
	}
	return nil
}

// count updates the numbers of lost packets, and returns all counts.
func (r *recorder) count() []Count {
	for _, s := range r.sources {
		for i := range s.Interfaces() {
			r.file.counts[r.first[s]+i].Lost = s.Lost(i)
		}
	}
	return r.file.counts
}
