package report

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	for _, colour := range []bool{false, true} {
		var b bytes.Buffer
		p := New(&b, colour)
		p.Table([]string{"NODE", "STATE", "X"}, []string{"a", p.Paint(Bad, "wrong"), ""}, []string{"longer", "ok", "y"})
		got := b.String()
		if strings.Contains(got, "\x1b") != colour {
			t.Errorf("colour %v: %q", colour, got)
		}
		want := "NODE    STATE  X\na       wrong  -\nlonger  ok     y\n"
		if got = escape.ReplaceAllString(got, ""); got != want {
			t.Errorf("colour %v: got\n%swant\n%s", colour, got, want)
		}
	}
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	New(&b, false).Text("  remedy: ", strings.Repeat("twelve-chars ", 12))
	for i, line := range strings.Split(strings.TrimRight(b.String(), "\n"), "\n") {
		if len(line) > width+8 || i > 0 && !strings.HasPrefix(line, strings.Repeat(" ", len("  remedy: "))+"t") {
			t.Errorf("line %d: %q", i, line)
		}
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("the pipe is closed") }

func TestErrorStays(t *testing.T) {
	p := New(broken{}, false)
	p.Line("a")
	p.Table([]string{"b"})
	if p.Err() == nil {
		t.Error("no error")
	}
}
