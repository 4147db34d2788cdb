package capture

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/fairlead-cni/fairlead/datapath/capture"
)

// fake is a source of packets with these times. It ends with err after the last packet, or when it is stopped.
type fake struct {
	name    string
	packets []packet
	err     error
	stopped chan struct{}
	once    *sync.Once
}

func source(name string, err error, ms ...int) *fake {
	f := &fake{name: name, err: err, stopped: make(chan struct{}), once: &sync.Once{}}
	for _, m := range ms {
		f.packets = append(f.packets, at(m))
	}
	return f
}

func (f *fake) String() string { return f.name }

func (f *fake) Interfaces() []Interface {
	return []Interface{{Name: f.name, Description: f.name + " of a test", Filter: "all packets"}}
}

func (f *fake) Next() (int, capture.Frame, error) {
	if len(f.packets) > 0 {
		p := f.packets[0]
		f.packets = f.packets[1:]
		return 0, p.Frame, nil
	}
	if f.err == nil {
		<-f.stopped
		return 0, capture.Frame{}, io.EOF
	}
	return 0, capture.Frame{}, f.err
}

func (f *fake) Stop() { f.once.Do(func() { close(f.stopped) }) }

func (f *fake) Lost(int) uint64 { return 3 }

func (f *fake) Close() error { f.Stop(); return nil }

// read returns the times of the file's packets in milliseconds, and its interfaces.
func read(t *testing.T, data []byte) (ms []int, all []Interface) {
	t.Helper()
	s := newStream("test")
	if err := s.open(bytes.NewReader(data), int64(len(data))); err != nil {
		t.Fatal(err)
	}
	for {
		_, f, err := s.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		ms = append(ms, int(f.Time.UnixMilli()))
	}
	if s.lost[0].Load() != 3 {
		t.Errorf("%d packets are lost, want 3", s.lost[0].Load())
	}
	return ms, s.of
}

func limits() Limits {
	return Limits{Duration: time.Minute, Packets: 1000, Bytes: 1 << 20, SnapLen: capture.MaxSnapLen}
}

func TestRecord(t *testing.T) {
	bound := func(change func(*Limits)) Limits { l := limits(); change(&l); return l }
	interrupted, interrupt := context.WithCancelCause(t.Context())
	interrupt(errors.New("interrupted"))
	gone := errors.New("the node is gone")
	for _, c := range []struct {
		name     string
		ctx      context.Context
		limits   Limits
		sources  []*fake
		want     []int
		ended    string
		problems string
	}{
		{"merged, and interrupted", interrupted, limits(), []*fake{source("a", nil, 1, 4, 9), source("b", nil, 2, 3, 8)},
			[]int{1, 2, 3, 4, 8, 9}, "interrupted", ""},
		{"no packets for its time", t.Context(), bound(func(l *Limits) { l.Duration = time.Millisecond }), []*fake{source("a", nil)},
			nil, "the duration of 1ms is over", ""},
		{"enough packets", t.Context(), bound(func(l *Limits) { l.Packets = 3 }), []*fake{source("a", nil, 1, 4, 9), source("b", nil, 2)},
			[]int{1, 2, 4}, "there are 3 packets", ""},
		{"enough bytes", t.Context(), bound(func(l *Limits) { l.Bytes = 2 * (100 + blockBytes) }), []*fake{source("a", nil, 1, 4, 9)},
			[]int{1, 4}, "the next packet does not fit in 296 bytes", ""},
		{"the limit of another node", t.Context(), bound(func(l *Limits) { l.Packets = 2 }), []*fake{source("a", io.EOF, 1, 4), source("b", nil)},
			[]int{1, 4}, "there are 2 packets", ""},
		{"a node that ends", t.Context(), bound(func(l *Limits) { l.Duration = time.Millisecond }),
			[]*fake{source("a", gone, 1), source("b", nil, 2)}, []int{1, 2}, "the duration of 1ms is over", "a: the node is gone"},
		{"all nodes end", t.Context(), limits(), []*fake{source("a", gone, 1)}, []int{1}, "all captures have ended", "a: the node is gone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var sources []Source
			var names []string
			for _, s := range c.sources {
				sources, names = append(sources, s), append(names, s.name)
				defer s.Close()
			}
			var file bytes.Buffer
			s, err := Record(c.ctx, &file, sources, Recording{Limits: c.limits, Comment: "test"})
			if err != nil {
				t.Fatal(err)
			}
			got, all := read(t, file.Bytes())
			var described []string
			for _, i := range all {
				described = append(described, i.Name)
			}
			if !slices.Equal(got, c.want) || s.Packets != len(c.want) || !slices.Equal(described, names) {
				t.Errorf("packets %v of %v (%d), want %v of %v", got, described, s.Packets, c.want, names)
			}
			if s.Ended != c.ended || strings.Join(s.Problems, "; ") != c.problems {
				t.Errorf("ended: %q, problems %q, want %q and %q", s.Ended, s.Problems, c.ended, c.problems)
			}
		})
	}
}

// full is a full disk.
type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, errors.New("no space left on device")
	}
	return len(p), nil
}

func TestRecordOnAFullDisk(t *testing.T) {
	for _, room := range []int{0, 500} {
		s := source("a", nil, slices.Repeat([]int{1}, 200)...)
		_, err := Record(t.Context(), &full{room}, []Source{s}, Recording{Limits: limits()})
		if err == nil || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("room for %d bytes: %v", room, err)
		}
		s.Close()
	}
}

// A pipe or connection whose reader hangs does not keep a capture running.
func TestRecordForNoReader(t *testing.T) {
	for name, duration := range map[string]time.Duration{"at its end": time.Minute, "interrupted": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				hung, s := make(stuck), source("a", nil, 1)
				defer s.Close()
				defer close(hung)
				l := limits()
				l.Duration = duration
				_, err := Record(ctx, hung, []Source{s}, Recording{Limits: l})
				if err == nil || !strings.Contains(err.Error(), "are not taken") {
					t.Error(err)
				}
			})
		})
	}
}

// stuck is a pipe that is not read.
type stuck chan struct{}

func (s stuck) Write([]byte) (int, error) {
	<-s
	return 0, io.ErrClosedPipe
}

// program stands in for fairleadctl.
type program func(in io.Reader, out, messages io.Writer) error

func (p program) Run(_ context.Context, _ string, _ []string, in io.Reader, out, messages io.Writer) error {
	return p(in, out, messages)
}

// recorded is the stream that another node sends.
func recorded(t testing.TB, comment string, ms ...int) []byte {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var file bytes.Buffer
	how := Recording{Limits: limits(), Comment: comment}
	if _, err := Record(ctx, &file, []Source{source("a", nil, ms...)}, how); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// A capture on another node runs until it is stopped, forwards everything that was sent, and reports why it failed.
func TestRemote(t *testing.T) {
	file := recorded(t, "test", 1, 2, 3)
	for _, c := range []struct {
		name    string
		program program
		starts  string // the error of start
		want    []int
		ends    string
	}{
		{"until it is stopped", func(in io.Reader, out, _ io.Writer) error {
			_, _ = out.Write(file[:len(file)-10])
			_, _ = io.Copy(io.Discard, in)
			_, err := out.Write(file[len(file)-10:])
			return err
		}, "", []int{1, 2, 3}, "EOF"},
		{"it fails at once", func(_ io.Reader, _, messages io.Writer) error {
			fmt.Fprint(messages, "unknown command \x1b[2J\"capture\"\n")
			return errors.New("exit code 2")
		}, `node n: the capture ended before it began: exit code 2: unknown command [2J"capture"`, nil, ""},
		{"it says something else", func(_ io.Reader, out, _ io.Writer) error {
			_, _ = out.Write([]byte("Welcome to this machine, which is not for you"))
			return nil
		}, "node n: the capture ended before it began", nil, ""},
		{"it dies", func(_ io.Reader, out, messages io.Writer) error {
			_, _ = out.Write(file[:len(file)-10])
			fmt.Fprint(messages, "Killed")
			return errors.New("exit code 137")
		}, "", []int{1, 2, 3}, "exit code 137: Killed"},
		{"its stream breaks off", func(_ io.Reader, out, _ io.Writer) error {
			_, _ = out.Write(file[:len(file)-10])
			return nil
		}, "", []int{1, 2, 3}, "unexpected EOF"},
		{"it sends more than it may", func(_ io.Reader, out, _ io.Writer) error {
			_, _ = out.Write(file)
			for {
				if _, err := out.Write(make([]byte, 1000)); err != nil {
					return errors.New("broken pipe")
				}
			}
		}, "", []int{1, 2, 3}, "broken pipe"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := start(t.Context(), c.program, "n", nil, int64(len(file))+5)
			if err != nil || c.starts != "" {
				if err == nil || c.starts == "" || !strings.HasPrefix(err.Error(), c.starts) {
					t.Errorf("it begins: %v, want %s", err, c.starts)
				}
				return
			}
			defer s.Close()
			s.Stop()
			var got []int
			for {
				var f capture.Frame
				if _, f, err = s.Next(); err != nil {
					break
				}
				got = append(got, int(f.Time.UnixMilli()))
			}
			if !slices.Equal(got, c.want) || err.Error() != c.ends {
				t.Errorf("%v, and then %v, want %v and %s", got, err, c.want, c.ends)
			}
		})
	}
}

// A silent program delays the caller no longer than its context allows.
func TestSilentRemote(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := start(ctx, program(func(in io.Reader, _, _ io.Writer) error {
		_, err := io.Copy(io.Discard, in)
		return err
	}), "n", nil, 100)
	if err == nil || !strings.Contains(err.Error(), "node n: the capture has not begun: context deadline exceeded") {
		t.Error(err)
	}
}

func TestCommandOnNode(t *testing.T) {
	var out, messages bytes.Buffer
	in, stop := io.Pipe()
	stop.Close()
	err := Command("sh -c {node}").Run(t.Context(), "cat>&2;printf${IFS}$1;exit${IFS}3", []string{"sh", "packets"}, in, &out, &messages)
	if err == nil || err.Error() != "exit status 3" || out.String() != "packets" {
		t.Errorf("%v, %q, %q", err, out.String(), messages.String())
	}
	if err := Command(" ").Run(t.Context(), "n", nil, in, &out, &messages); err == nil {
		t.Error("an empty command is run")
	}
}

// Whatever another node sends, reading ends, and each packet belongs to a described interface.
func FuzzStream(f *testing.F) {
	f.Add(recorded(f, "test", 1, 2, 3))
	f.Add(recorded(f, "", 1)[:200])
	f.Add([]byte("\x0a\x0d\x0d\x0a"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := newStream("node")
		if err := s.open(bytes.NewReader(data), 1<<20); err != nil {
			return
		}
		for {
			i, p, err := s.next()
			if err != nil {
				return
			}
			if i < 0 || i >= len(s.of) || len(p.Data) > p.Length || len(p.Data) > capture.MaxSnapLen+maxTag {
				t.Fatalf("a packet of interface %d of %d, %d of %d bytes", i, len(s.of), len(p.Data), p.Length)
			}
		}
	})
}

// Neither compressed data, which could expand to any size, nor unbounded data between packets is read.
func TestStreamIsBounded(t *testing.T) {
	packed := bytes.Buffer{}
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(make([]byte, 1<<20))
	_ = z.Close()
	if err := newStream("n").open(&packed, 1<<30); !errors.Is(err, errNoFile) {
		t.Errorf("gzip: %v, want %v", err, errNoFile)
	}
	file := bytes.Buffer{}
	eth := pcapgo.NgInterface{Name: strings.Repeat("x", 1000), LinkType: layers.LinkTypeEthernet}
	w, err := pcapgo.NewNgWriterInterface(&file, eth, pcapgo.NgWriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for file.Len() < 2*maxStep {
		if _, err := w.AddInterface(eth); err != nil {
			t.Fatal(err)
		}
		_ = w.Flush()
	}
	s := newStream("n")
	if err := s.open(&file, 1<<30); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.next(); !errors.Is(err, errStep) {
		t.Errorf("2 MiB of interfaces: %v, want %v", err, errStep)
	}
}

// arguments records the arguments that it is run with, and returns a node's stream.
type arguments struct {
	sync.Mutex
	seen [][]string
	file []byte
}

func (a *arguments) Run(_ context.Context, _ string, args []string, in io.Reader, out, _ io.Writer) error {
	a.Lock()
	a.seen = append(a.seen, args)
	a.Unlock()
	_, _ = out.Write(a.file)
	_, _ = io.Copy(io.Discard, in)
	return nil
}

// A node that starts at once does not end before one that takes the maximum time to start.
func TestNodesLastLongEnough(t *testing.T) {
	runner := &arguments{file: recorded(t, "test")}
	l := Limits{Duration: time.Minute, Packets: 1, Bytes: 1000, SnapLen: 1500}
	sources, err := StartAll(t.Context(), runner, []Job{{Node: "a"}, {Node: "b"}}, l, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sources {
		s.Close()
	}
	for _, args := range runner.seen {
		i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "--duration=") })
		d, err := time.ParseDuration(strings.TrimPrefix(args[i], "--duration="))
		if err != nil || d <= time.Hour+time.Minute {
			t.Errorf("%s: %v, want more than 1h1m", args[i], err)
		}
	}
	if len(runner.seen) != 2 {
		t.Errorf("%q were run, want 2", runner.seen)
	}
}

// The caller's byte limit is reached before a node's, because a node could not report why it has ended.
func TestNodesMayTakeMore(t *testing.T) {
	l := Limits{Duration: time.Second, Packets: 1, Bytes: maxBytes, SnapLen: 1500}
	args := Job{Ends: Ends{Pod: "default/a"}}.Args(l, 0)
	i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "--size=") })
	n, err := strconv.ParseInt(strings.TrimPrefix(args[i], "--size="), 10, 64)
	if err != nil || n < l.Bytes+size(capture.Frame{Data: make([]byte, l.SnapLen+maxTag)}) {
		t.Errorf("%q: %v", args[i], err)
	}
	l.Bytes = n
	if err := l.Check(true); err != nil {
		t.Errorf("a node refuses it: %v", err)
	}
}
