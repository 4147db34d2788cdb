package capture

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/ctl/inforce"
	"github.com/fairlead-cni/fairlead/datapath/capture"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// MaxDuration is the longest duration that may be requested.
const MaxDuration = 10 * time.Minute

// The largest limits that may be requested.
const (
	maxPackets = 10_000_000
	maxBytes   = 4 << 30
)

// Check says what is wrong with the requested limits. part: this is a part of a capture, which the caller ends.
func (l Limits) Check(part bool) error {
	switch {
	case l.Duration <= 0 || l.Duration > MaxDuration && !part:
		return fmt.Errorf("--duration %s: want at most %s", l.Duration, MaxDuration)
	case l.Packets <= 0 || l.Packets > maxPackets:
		return fmt.Errorf("--packets %d: want 1 to %d", l.Packets, maxPackets)
	case l.Bytes <= 0 || l.Bytes > maxBytes && !part:
		return fmt.Errorf("--size of %d bytes: want at most 4Gi", l.Bytes)
	case l.SnapLen < 64 || l.SnapLen > capture.MaxSnapLen:
		return fmt.Errorf("--snaplen %d: want 64 to %d", l.SnapLen, capture.MaxSnapLen)
	}
	return nil
}

// ParseEnds reads a pod, and the other end: another pod, one address of each family, or empty.
func ParseEnds(pod, to string) (Ends, error) {
	ends := Ends{Pod: pod}
	if to == "" {
		return ends, nil
	}
	for text := range strings.SplitSeq(to, ",") {
		a, err := netip.ParseAddr(text)
		if err != nil {
			break
		}
		ends.Addrs = append(ends.Addrs, a.Unmap())
	}
	switch n := strings.Count(to, ",") + 1; {
	case len(ends.Addrs) == 0 && n == 1:
		ends.To = inforce.Name(to)
		return ends, nil
	case len(ends.Addrs) != n || n > 2 || n == 2 && ends.Addrs[0].Is4() == ends.Addrs[1].Is4():
		return ends, fmt.Errorf("--to %s: want a pod, or one address of each family", to)
	}
	return ends, nil
}

// ShowProgress writes the counts when they have changed, on a terminal always in the same line.
func ShowProgress(w io.Writer, terminal bool) func([]Count) {
	begin, end, before := "", "\n", ""
	if terminal {
		begin, end = "\r\033[K", ""
	}
	return func(counts []Count) {
		var parts []string
		for _, n := range counts {
			parts = append(parts, fmt.Sprintf("%s %d", n.Name, n.Packets))
		}
		if now := strings.Join(parts, ", "); now != before {
			before = now
			fmt.Fprint(w, begin+now+end)
		}
	}
}

// Write writes it as text.
func (s *Summary) Write(p *report.Printer) {
	before := ""
	if s.File != "" {
		before = s.File + ": "
	}
	p.Line("%s%s, %d bytes. The capture has ended: %s", before, report.Count(s.Packets, "1 packet", "%d packets"), s.Bytes, s.Ended)
	rows := [][]string{{"INTERFACE", "PACKETS", "LOST", "WHAT"}}
	for _, n := range s.Interfaces {
		rows = append(rows, []string{n.Name, fmt.Sprint(n.Packets), fmt.Sprint(n.Lost), n.Description})
	}
	p.Table(rows...)
}
