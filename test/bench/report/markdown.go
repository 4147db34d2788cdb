package report

import (
	"fmt"
	"strings"
)

// Markdown is all rows as a page: a table for each group, with the notes below it. A missed target is bold.
func (a All) Markdown() string {
	var b strings.Builder
	first, last := a.period()
	fmt.Fprintf(&b, "Measured from %s to %s. %s.\n", first.Format("2006-01-02 15:04"), last.Format("15:04 UTC"), a.met())
	for i := 0; i < len(a.Rows); {
		end := i
		for end < len(a.Rows) && a.Rows[end].Group == a.Rows[i].Group {
			end++
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s", a.Rows[i].Group, markdownTable(a.Rows[i:end]))
		i = end
	}
	return b.String()
}

func markdownTable(rows []Row) string {
	var b, notes strings.Builder
	fmt.Fprintf(&b, "| measured | unit | ours: median (min, p95) | peer | peer's | what counts (8 of 10 rounds) | target | load |\n")
	fmt.Fprintf(&b, "| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range rows {
		c := r.cells()
		counts := c[4]
		if r.Met == "no" {
			counts = "**" + counts + "**"
		}
		columns := []string{r.Name, r.Unit, c[2], r.Against, c[3], counts, c[5], r.Load}
		for i, text := range columns {
			columns[i] = strings.ReplaceAll(text, "|", `\|`)
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(columns, " | "))
		if r.Note != "" {
			fmt.Fprintf(&notes, "\n- %s: %s", r.Name, r.Note)
		}
	}
	if notes.Len() > 0 {
		fmt.Fprintf(&b, "%s\n", notes.String())
	}
	return b.String()
}
