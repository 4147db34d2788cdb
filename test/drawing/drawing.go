// Package drawing generates the drawings of docs/ from text: docs/NAME.svg is docs/NAME.txt, with lines where the text
// has them. "go test ./test/drawing -update" regenerates them.
package drawing

import (
	"encoding/xml"
	"fmt"
	"strings"
)

// Width and height of a character, in pixels.
const wide, high = 8, 16

// canvas is a text as lines of characters.
type canvas [][]rune

// at is a blank beyond the edges.
func (c canvas) at(row, column int) rune {
	if row < 0 || row >= len(c) || column < 0 || column >= len(c[row]) {
		return ' '
	}
	return c[row][column]
}

func isOne(r rune, of string) bool { return strings.ContainsRune(of, r) }

// isLine distinguishes a line's characters from those of words: it has more of its kind beside it, or ends at a corner.
func (c canvas) isLine(row, column int) bool {
	switch c.at(row, column) {
	case '|', '+':
		return true
	case '-':
		const more = "-+<>|v^"
		return isOne(c.at(row, column-1), more) && isOne(c.at(row, column+1), more+" ") ||
			isOne(c.at(row, column-1), more+" ") && isOne(c.at(row, column+1), more)
	case '>', '<':
		return isOne(c.at(row, column-1), "-+") && isOne(c.at(row, column+1), "-+")
	case 'v':
		return c.at(row-1, column) == '|' && isOne(c.at(row, column-1), "- ") && isOne(c.at(row, column+1), "- ")
	case '^':
		return c.at(row+1, column) == '|' && isOne(c.at(row, column-1), "- ") && isOne(c.at(row, column+1), "- ")
	}
	return false
}

// SVG renders a text.
func SVG(text string) string {
	var c canvas
	columns := 0
	for line := range strings.Lines(text) {
		c = append(c, []rune(strings.TrimRight(line, "\n")))
		columns = max(columns, len(c[len(c)-1]))
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="monospace" font-size="13">`+
		"\n"+`<rect width="100%%" height="100%%" fill="white"/>`+"\n", (columns+2)*wide, (len(c)+1)*high)
	var lines, heads strings.Builder
	for row := range c {
		c.words(&b, row)
		for column := range c[row] {
			if c.isLine(row, column) {
				c.stroke(&lines, &heads, row, column)
			}
		}
	}
	fmt.Fprintf(&b, `<path d="%s" stroke="black"/>`+"\n"+`<path d="%s"/>`+"\n</svg>\n", lines.String(), heads.String())
	return b.String()
}

// words writes the words of a row, each at its position.
func (c canvas) words(b *strings.Builder, row int) {
	for column := 0; column < len(c[row]); column++ {
		var word []rune
		for start := column; column < len(c[row]) && c[row][column] != ' ' && !c.isLine(row, column); column++ {
			word = c[row][start : column+1]
		}
		if len(word) > 0 {
			var escaped strings.Builder
			_ = xml.EscapeText(&escaped, []byte(string(word))) // a strings.Builder returns no errors
			fmt.Fprintf(b, `<text x="%d" y="%d" textLength="%d">%s</text>`+"\n", (column-len(word)+1)*wide, row*high+high+4,
				len(word)*wide, escaped.String())
		}
	}
}

// stroke draws one character of a line, towards its neighbours that belong to the line.
func (c canvas) stroke(lines, heads *strings.Builder, row, column int) {
	x, y := (column+1)*wide+wide/2, row*high+high
	r := c.at(row, column)
	for _, to := range []struct {
		rows, columns int
		is, towards   string
	}{{0, -1, "-+<>v^", "-+<>v^"}, {0, 1, "-+<>v^", "-+<>v^"}, {-1, 0, "|+v^", "|+v^-"}, {1, 0, "|+v^", "|+v^-"}} {
		next := c.at(row+to.rows, column+to.columns)
		joined := isOne(r, to.is) && isOne(next, to.towards) && c.isLine(row+to.rows, column+to.columns)
		if joined || r == '|' && to.columns == 0 {
			fmt.Fprintf(lines, "M%d %dl%d %d", x, y, to.columns*wide/2, to.rows*high/2)
		}
	}
	shapes := map[rune]string{'>': "-4 -4v8l8 -4z", '<': "4 -4v8l-8 -4z", 'v': "-4 -4h8l-4 8z", '^': "-4 4h8l-4 -8z"}
	if shape, ok := shapes[r]; ok {
		fmt.Fprintf(heads, "M%d %dm%s", x, y, shape)
	}
}
