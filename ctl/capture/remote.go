package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/capture"
)

// Runner runs fairleadctl on a node.
type Runner interface {
	// Run returns when the program on the node has ended.
	Run(ctx context.Context, node string, args []string, in io.Reader, out, messages io.Writer) error
}

// remote is a capture on another node.
type remote struct {
	*stream
	in     *io.PipeWriter // closing it ends the capture
	cancel context.CancelFunc
	closed <-chan struct{}
	done   chan struct{}
	err    error // of the program, once done is closed
	found  chan result
}

// result is what the stream's next has returned.
type result struct {
	at  int
	of  capture.Frame
	err error
}

// start starts a capture on a node, by fairleadctl with these arguments, and waits until it has begun. Its stream may
// have maxBytes. The error says why it has not begun by the end of ctx; the capture itself does not end with ctx.
func start(ctx context.Context, runner Runner, node string, args []string, maxBytes int64) (Source, error) {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &remote{stream: newStream(node), cancel: cancel, closed: running.Done(),
		done: make(chan struct{}), found: make(chan result)}
	var in *io.PipeReader
	in, r.in = io.Pipe()
	out, to := io.Pipe()
	said := &tail{}
	go func() {
		defer close(r.done)
		r.err = runner.Run(running, node, args, in, to, said)
		if text := said.String(); r.err != nil && text != "" {
			r.err = fmt.Errorf("%w: %s", r.err, text)
		}
		to.Close() // loses nothing: a write to the pipe returns only once it was read
	}()
	go r.read(running, out, maxBytes)
	select {
	case <-r.begun:
		return r, nil
	case f := <-r.found:
		r.Close()
		return nil, fmt.Errorf("node %s: the capture ended before it began: %w", node, f.err)
	case <-ctx.Done():
		r.Close()
		err := fmt.Errorf("node %s: the capture has not begun: %w", node, context.Cause(ctx))
		if text := said.String(); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return nil, err
	}
}

// streamBytes is the largest size of a stream with l.Bytes of packets: the beginning and statistics come on top.
func streamBytes(l Limits) int64 { return l.Bytes + 1<<20 }

// StartAll starts all jobs at once, and waits until all have begun, within that time. If one fails, none is left.
func StartAll(ctx context.Context, runner Runner, jobs []Job, l Limits, within time.Duration) ([]Source, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	sources, failed := make([]Source, len(jobs)), make([]error, len(jobs))
	var all sync.WaitGroup
	for i, j := range jobs {
		all.Go(func() { sources[i], failed[i] = start(ctx, runner, j.Node, j.Args(l, within), streamBytes(l)) })
	}
	all.Wait()
	err := errors.Join(failed...)
	for i, s := range sources {
		if err != nil && failed[i] == nil {
			s.Close()
		}
	}
	return sources, err
}

// read passes on packets until the stream ends, and then the reason.
func (r *remote) read(ctx context.Context, out *io.PipeReader, maxBytes int64) {
	var f result
	for f.err = r.open(out, maxBytes); f.err == nil; {
		if f.at, f.of, f.err = r.next(); f.err == nil && !r.deliver(ctx, f) {
			break
		}
	}
	out.Close() // the program can no longer write, and ends
	if errors.Is(f.err, io.EOF) || errors.Is(f.err, io.ErrUnexpectedEOF) {
		select {
		case <-r.done:
		case <-ctx.Done():
			return
		}
		if r.err != nil { // which says why the stream has ended
			f.err = r.err
		}
	}
	for r.deliver(ctx, f) { // it stays ended
	}
}

// deliver passes a result on, and reports whether the capture still runs.
func (r *remote) deliver(ctx context.Context, f result) bool {
	select {
	case r.found <- f:
		return true
	case <-ctx.Done():
		return false
	}
}

// String implements Source.
func (r *remote) String() string { return "node " + r.node }

// Interfaces implements Source.
func (r *remote) Interfaces() []Interface { return r.of }

// Next implements Source.
func (r *remote) Next() (int, capture.Frame, error) {
	select {
	case f := <-r.found:
		return f.at, f.of, f.err
	case <-r.closed:
		return 0, capture.Frame{}, net.ErrClosed
	}
}

// Stop implements Source.
func (r *remote) Stop() { r.in.Close() }

// Lost implements Source.
func (r *remote) Lost(at int) uint64 { return r.lost[at].Load() }

// Close implements Source.
func (r *remote) Close() error {
	r.in.Close()
	r.cancel()
	return nil
}

// tail keeps the end of a program's messages.
type tail struct {
	sync.Mutex
	text []byte
}

const maxTail = 2000

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.Lock()
	defer t.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-maxTail):]
	return len(p), nil
}

// String is the text without control characters, which a terminal would obey.
func (t *tail) String() string {
	t.Lock()
	defer t.Unlock()
	var lines []string
	for line := range strings.Lines(string(t.text)) {
		lines = append(lines, printable(line))
	}
	return strings.Join(lines, " ")
}
