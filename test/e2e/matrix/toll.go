package matrix

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fairlead-cni/fairlead/test/probe"
)

// Toll is what one path lost. Failed of Asked HTTP requests had no answer; Err is the last error.
type Toll struct {
	Path
	Established, New probe.Report
	Asked, Failed    int
	Err              error
}

// Lost reports whether anything was lost.
func (t Toll) Lost() bool { return t.Established.Lost+t.New.Lost+t.Failed > 0 }

func (t Toll) String() string {
	s := fmt.Sprintf("%s: established: %s; new: %s; HTTP: %d of %d failed", t.Path, t.Established, t.New, t.Failed, t.Asked)
	if t.Err != nil {
		s += ", the last because of: " + t.Err.Error()
	}
	return s
}

// Event is what happened while the paths carried traffic, and what it cost.
type Event struct {
	Name  string
	Tolls []Toll
}

// Of are the tolls of one kind.
func (e Event) Of(kind string) []Toll {
	return slices.DeleteFunc(slices.Clone(e.Tolls), func(t Toll) bool { return t.Kind != kind })
}

// Table has a line for each event and kind of its traffic: what all paths of the kind lost, and the longest outage of
// the worst.
func Table(events []Event, kinds ...string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "event\twhose\testablished lost\tof\toutage\tnew lost\tof\toutage\tHTTP failed\tof")
	for _, e := range events {
		for _, kind := range kinds {
			if len(e.Of(kind)) == 0 {
				continue
			}
			var asked, failed int
			var established, fresh sum
			for _, t := range e.Of(kind) {
				established.add(t.Established)
				fresh.add(t.New)
				asked, failed = asked+t.Asked, failed+t.Failed
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\n", e.Name, kind, established, fresh, failed, asked)
		}
	}
	w.Flush()
	return b.String()
}

// sum adds up streams.
type sum struct {
	lost, sent int
	outage     time.Duration
}

func (s *sum) add(r probe.Report) {
	s.lost, s.sent, s.outage = s.lost+r.Lost, s.sent+r.Sent, max(s.outage, r.Outage)
}

func (s sum) String() string {
	return fmt.Sprintf("%d\t%d\t%d ms", s.lost, s.sent, s.outage.Milliseconds())
}
