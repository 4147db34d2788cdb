package jsonrpc

import (
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// answers is the socket of a server that answers each request with the pieces of a text, and then closes the
// connection.
func answers(t *testing.T, pieces ...string) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "ctl")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = json.NewDecoder(conn).Decode(new(any))
			for _, piece := range pieces {
				_, _ = conn.Write([]byte(piece))
				time.Sleep(time.Millisecond) // so that the next one arrives separately
			}
			conn.Close()
		}
	}()
	return socket
}

func TestLines(t *testing.T) {
	text := "a\t\"b\"\n\\ü€😀<&>\n\nlast"
	encoded, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	whole := `{"error":null,"id":0,"result":` + string(encoded) + "}"
	for i := range len(whole) { // cut anywhere
		var got []string
		err := Lines(t.Context(), "x", answers(t, whole[:i], whole[i:]), "m", nil, func(line []byte) error {
			got = append(got, string(line))
			return nil
		})
		if want := strings.Split(text, "\n"); err != nil || !slices.Equal(got, want) {
			t.Fatalf("cut at %d: %q, %v; want %q", i, got, err, want)
		}
	}
}

// A rejection, or a connection that ends early, is an error that says so; an error of the callback is returned
// unchanged.
func TestLinesThatFail(t *testing.T) {
	mine := errors.New("mine")
	for answer, want := range map[string]string{
		`{"id":0,"error":"no \"such\" command","result":null}`: `x rejected the request: no "such" command`,
		`{"id":0,"error":null,"result":"one\ntw`:               "x does not answer",
		``:                                                     "x does not answer",
		`{"result":["a"]}`:                                     "x does not answer",
		`{"result":"a\u00`:                                     "x does not answer",
		`{"id":0,"result":null}`:                               "x does not answer",
		`{"result":"one\nstop\nthree",...`:                     "mine",
	} {
		err := Lines(t.Context(), "x", answers(t, answer), "m", nil, func(line []byte) error {
			if string(line) == "stop" {
				return mine
			}
			return nil
		})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", answer, err, want)
		}
	}
}
