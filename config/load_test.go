package config

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	// A ConfigMap is mounted as a link to a link.
	link := filepath.Join(dir, "link")
	if err := os.Symlink(file("linked", []byte("tunnelPort: 1\n")), link); err != nil {
		t.Fatal(err)
	}
	comment := func(size int) []byte { return append(bytes.Repeat([]byte("#"), size-1), '\n') }
	for _, c := range []struct {
		path, want string // want is part of the error
	}{
		{file("good", []byte("tunnelPort: 1\n")), ""},
		{link, ""},
		{file("byte order mark", []byte("\ufefftunnelPort: 1\n")), ""},
		{file("CR LF", []byte("tunnelPort: 1\r\nnoSNAT: false\r\n")), ""},
		{file("as large as allowed", comment(MaxSize)), ""},
		{file("large", comment(MaxSize+1)), "large: larger than 1048576 bytes"},
		{file("latin1", []byte("ovsBridge: br\nhostGateway: gw\xe4\n")), "latin1:2: not UTF-8 text"},
		{file("utf16", []byte("\xff\xfet\x00")), "encoded in UTF-16: save it as UTF-8"},
		{file("NUL", []byte("ovsBridge: a\x00b\n")), "not YAML: control characters are not allowed"},
		{dir, "is a directory: name the file in it"},
		{pipe, "is not a regular file"},
		{filepath.Join(dir, "absent"), "no such file or directory"},
	} {
		t.Run(filepath.Base(c.path), func(t *testing.T) {
			_, _, err := Load(c.path)
			_, _, errController := LoadController(c.path)
			if c.want == "" && err != nil {
				t.Fatal(err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if c.want != "" && (errController == nil || !strings.Contains(errController.Error(), c.want)) {
				t.Fatalf("LoadController: got %v, want %q", errController, c.want)
			}
		})
	}
	if _, _, err := Load(filepath.Join(dir, "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v does not wrap fs.ErrNotExist", err)
	}
	c, _, err := Load(link)
	want := defaults(Agent).AgentConfig
	want.TunnelPort = 1
	if err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, want %+v", c, want)
	}
}

func TestEmptyIsDefaults(t *testing.T) {
	for _, data := range []string{"", "\n", "# nothing\n", "---\n", "---\n---\n...\n", "{}", "null"} {
		c, warnings, err := Parse([]byte(data), "f")
		if err != nil || len(warnings) > 0 || !reflect.DeepEqual(c, defaults(Agent).AgentConfig) {
			t.Errorf("%q: %+v, %v, %v", data, c, warnings, err)
		}
	}
	if d := defaults(Agent).AgentConfig; d.OVSBridge != "br-int" || d.APIPort != 10350 || d.APIAddress.String() != "127.0.0.1" ||
		d.PodCIDRWait.Seconds() != 10 || !d.EnablePrometheusMetrics || d.TransportInterfaceCIDRs != nil {
		t.Errorf("defaults: %+v", d)
	}
}

func TestEdits(t *testing.T) {
	for _, c := range []struct {
		a, b  string
		limit int
		want  int
	}{
		{"", "", 3, 0}, {"abc", "abc", 3, 0}, {"abc", "abd", 3, 1}, {"abc", "ab", 3, 1}, {"ab", "abc", 3, 1},
		{"kitten", "sitting", 9, 3}, {"kitten", "sitting", 2, 2}, {"a", "abcdefgh", 3, 3}, {"flaw", "lawn", 9, 2},
	} {
		if got := edits(c.a, c.b, c.limit); got != c.want {
			t.Errorf("edits(%q, %q, %d) = %d, want %d", c.a, c.b, c.limit, got, c.want)
		}
	}
}

// FuzzParse parses arbitrary data as both files: no panic, and every error has an existing line.
func FuzzParse(f *testing.F) {
	for _, path := range []string{"accepted", "refused", "errors", "documents"} {
		data, err := os.ReadFile("testdata/" + path + ".txtar")
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range strings.Split(string(data), "\n-- ") {
			_, config, _ := strings.Cut(part, "\n")
			f.Add([]byte(config))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		config, warnings, err := Parse(data, "f")
		if err != nil {
			checkFindings(t, data, err.(Errors))
			if !reflect.DeepEqual(config, reflect.Zero(reflect.TypeOf(config)).Interface()) {
				t.Error("a config comes with the error")
			}
		} else if config.OVSBridge == "" || config.OVSBridge == config.HostGateway || config.APIPort == 0 {
			t.Errorf("an impossible config is accepted: %+v", config)
		}
		checkFindings(t, data, warnings)
		if _, warnings, err := ParseController(data, "f"); err != nil {
			checkFindings(t, data, err.(Errors))
		} else {
			checkFindings(t, data, warnings)
		}
	})
}

func checkFindings(t *testing.T, data []byte, findings []Finding) {
	// The YAML parser also ends a line at CR, NEL, LS and PS.
	lines := 1 + bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte("\r")) +
		strings.Count(string(data), "\u0085") + strings.Count(string(data), "\u2028") +
		strings.Count(string(data), "\u2029")
	last := 0
	for _, f := range findings {
		if f.Text == "" || f.File != "f" || f.Line < 0 || f.Line > lines || f.Line < last {
			t.Errorf("finding %+v in a file of %d lines, behind line %d", f, lines, last)
		}
		last = f.Line
	}
}

// A file with only unknown keys, such as a wrong file, gets all its errors quickly: only the first ones have hints.
func TestHintsEnd(t *testing.T) {
	var b strings.Builder
	for i := range 2 * maxHints {
		b.WriteString("apiPort" + string(rune('\u0100'+i)) + ": 1\n")
	}
	_, _, err := Parse([]byte(b.String()), "f")
	if errs, ok := err.(Errors); !ok || len(errs) != 2*maxHints {
		t.Fatalf("%d errors, want %d", len(errs), 2*maxHints)
	}
	if hints := strings.Count(err.Error(), "did you mean apiPort?"); hints != maxHints {
		t.Errorf("%d hints, want %d", hints, maxHints)
	}
}
