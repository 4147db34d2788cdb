// Package report writes tables and paragraphs for terminals, in colour if enabled. It keeps the first error of its
// writer, so that callers check once.
package report

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"
)

// width is where text is wrapped, in columns.
const width = 110

// Colour is a colour of a terminal (ECMA-48, SGR).
type Colour string

// The colours of severities.
const (
	Good   Colour = "32" // green
	Middle Colour = "33" // yellow
	Bad    Colour = "31" // red
	Plain  Colour = ""
)

// Printer writes to one writer.
type Printer struct {
	w      io.Writer
	colour bool
	err    error
}

// New returns a Printer; colour says whether it may use colours.
func New(w io.Writer, colour bool) *Printer { return &Printer{w: w, colour: colour} }

// Err is the first error of the writer.
func (p *Printer) Err() error { return p.err }

// Paint is text in a colour, or unchanged if colours are disabled.
func (p *Printer) Paint(c Colour, text string) string {
	if !p.colour || c == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

// Line writes one line, unwrapped.
func (p *Printer) Line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// Text writes a labelled paragraph, wrapped.
func (p *Printer) Text(label, text string) {
	indent := strings.Repeat(" ", visible(label))
	line, empty := label, true
	for _, word := range strings.Fields(text) {
		if !empty && visible(line)+visible(word) > width {
			p.Line("%s", strings.TrimRight(line, " "))
			line = indent
		}
		line, empty = line+word+" ", false
	}
	p.Line("%s", strings.TrimRight(line, " "))
}

// Table writes rows in columns. Empty cells are shown as "-".
func (p *Printer) Table(rows ...[]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], visible(shown(cell)))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(shown(cell) + strings.Repeat(" ", widths[i]-visible(shown(cell))+2))
		}
		p.Line("%s", strings.TrimRight(b.String(), " "))
	}
}

func shown(cell string) string {
	if cell == "" {
		return "-"
	}
	return cell
}

var escape = regexp.MustCompile("\x1b\\[[0-9;]*m")

// visible is how many columns text occupies.
func visible(text string) int { return utf8.RuneCountInString(escape.ReplaceAllString(text, "")) }
