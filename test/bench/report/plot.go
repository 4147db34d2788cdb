package report

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"
)

// Sizes in pixels, and colours that also differ in greyscale.
const (
	labelWide, barWide, barHigh = 580, 420, 26
	plotWide, plotHigh, margin  = 640, 360, 70
)

func colours() []string {
	return []string{"#1f5fa8", "#d1691f", "#2e8b57", "#8a3fa0", "#555555", "#b8a100"}
}

// svg collects the elements of a drawing.
type svg struct{ strings.Builder }

func newSVG(width, height int) *svg {
	s := &svg{}
	fmt.Fprintf(s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+
		"\n"+`<rect width="100%%" height="100%%" fill="white"/>`+"\n", width, height)
	return s
}

func (s *svg) text(x, y float64, anchor, text string) {
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f" text-anchor="%s">`, x, y, anchor)
	_ = xml.EscapeText(s, []byte(text)) // a strings.Builder returns no errors
	s.WriteString("</text>\n")
}

func (s *svg) line(x1, y1, x2, y2 float64, style string) {
	fmt.Fprintf(s, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" %s/>`+"\n", x1, y1, x2, y2, style)
}

func (s *svg) end() string { return s.String() + "</svg>\n" }

// Ratios draws ours as a fraction of the peer's, as bars: green where the target (the red line) is met, grey where
// there is none. The thin line spans 8 of 10 rounds.
func (a All) Ratios() string {
	var rows []Row
	most := 1.2
	for _, r := range a.Rows {
		if r.Peer != nil && !r.Difference && !r.Worst {
			rows = append(rows, r)
			most = max(most, r.High, r.Value)
		}
	}
	at := func(v float64) float64 { return labelWide + v/most*barWide }
	high := float64(len(rows)+1) * barHigh
	s := newSVG(labelWide+barWide+80, int(high)+barHigh)
	for v := 0.0; v <= most; v += step(most) {
		s.line(at(v), barHigh, at(v), high, `stroke="#ddd"`)
		s.text(at(v), barHigh-8, "middle", trim(v))
	}
	for i, r := range rows {
		y := float64(i+1) * barHigh
		s.text(labelWide-8, y+17, "end", r.Group+", "+r.Name+" / "+r.Against)
		fill := map[string]string{"yes": "#2e8b57", "no": "#d1691f", "": "#8899aa"}[r.Met]
		fmt.Fprintf(s, `<rect x="%d" y="%.1f" width="%.1f" height="%d" fill="%s"/>`+"\n", labelWide, y+4,
			at(r.Value)-labelWide, barHigh-8, fill)
		s.line(at(r.Low), y+barHigh/2, at(r.High), y+barHigh/2, `stroke="black"`)
		if r.Target.Bound != "" {
			s.line(at(r.Target.Limit), y, at(r.Target.Limit), y+barHigh, `stroke="red" stroke-width="2"`)
		}
		s.text(at(max(r.High, r.Value))+6, y+17, "start", short(r.Value))
	}
	s.line(at(1), barHigh, at(1), high, `stroke="black" stroke-dasharray="4 3"`)
	return s.end()
}

// SVG draws the curve, both axes from 0.
func (c Curve) SVG() string {
	var mostX, mostY float64
	for _, l := range c.Lines {
		for _, p := range l.Points {
			mostX, mostY = max(mostX, p[0]), max(mostY, p[1])
		}
	}
	mostX, mostY = ceil(mostX), ceil(mostY)
	x := func(v float64) float64 { return margin + v/mostX*plotWide }
	y := func(v float64) float64 { return margin/2 + plotHigh - v/mostY*plotHigh }
	s := newSVG(plotWide+2*margin, plotHigh+2*margin+16*len(c.Lines))
	s.text(margin+plotWide/2, margin/4, "middle", c.Name)
	for v := 0.0; v <= mostX*1.001; v += step(mostX) {
		s.line(x(v), y(0), x(v), y(mostY), `stroke="#ddd"`)
		s.text(x(v), y(0)+16, "middle", trim(v))
	}
	for v := 0.0; v <= mostY*1.001; v += step(mostY) {
		s.line(x(0), y(v), x(mostX), y(v), `stroke="#ddd"`)
		s.text(x(0)-6, y(v)+4, "end", trim(v))
	}
	s.text(margin+plotWide/2, y(0)+34, "middle", c.X)
	fmt.Fprintf(s, `<g transform="translate(14 %d) rotate(-90)">`, margin/2+plotHigh/2)
	s.text(0, 0, "middle", c.Y)
	s.WriteString("</g>\n")
	for i, l := range c.Lines {
		colour := colours()[i%len(colours())]
		var path strings.Builder
		for n, p := range l.Points {
			fmt.Fprintf(&path, "%s%.1f %.1f", map[bool]string{true: "M", false: "L"}[n == 0], x(p[0]), y(p[1]))
			fmt.Fprintf(s, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x(p[0]), y(p[1]), colour)
		}
		fmt.Fprintf(s, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", path.String(), colour)
		below := y(0) + 52 + 16*float64(i)
		s.line(margin, below-4, margin+24, below-4, fmt.Sprintf(`stroke="%s" stroke-width="3"`, colour))
		s.text(margin+30, below, "start", l.Name)
	}
	return s.end()
}

// step is the distance of two grid lines: 1, 2 or 5 times a power of ten, for 4 to 10 lines.
func step(most float64) float64 {
	if most <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(most)))
	switch f := most / power; {
	case f < 2:
		return power / 5
	case f < 5:
		return power / 2
	default:
		return power
	}
}

// ceil is the next grid line, at least the first.
func ceil(most float64) float64 { return max(1, math.Ceil(most/step(most))) * step(most) }

func trim(v float64) string { return fmt.Sprintf("%.4g", v) }
