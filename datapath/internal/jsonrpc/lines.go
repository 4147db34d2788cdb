package jsonrpc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Lines is Call for a method whose result is text that may be too large to keep: each is called with every line as it
// arrives, without its line ending. It must not keep the line. Its error ends Lines.
func Lines(ctx context.Context, program, socket, method string, params any, each func(line []byte) error) error {
	return roundTrip(ctx, program, socket, method, params, func(from io.Reader) error {
		answer := flat{bufio.NewReaderSize(from, 1<<16)}
		for {
			key, err := answer.next()
			if err != nil {
				return err
			}
			value, err := answer.value()
			switch {
			case err != nil:
				return err
			case value == nil: // null, or a number
			case key == "result":
				return lines(value, each)
			case key == "error":
				reason, err := io.ReadAll(value)
				if err != nil {
					return err
				}
				return rejectedError{program, string(reason)}
			default:
				if _, err := io.Copy(io.Discard, value); err != nil {
					return err
				}
			}
		}
	})
}

func lines(text io.Reader, each func([]byte) error) error {
	s := bufio.NewScanner(text)
	for s.Scan() {
		if err := each(s.Bytes()); err != nil {
			return handled(err)
		}
	}
	return s.Err()
}

// flat is a JSON object whose values are strings, numbers and null, read as a stream.
type flat struct{ *bufio.Reader }

var errNotFlat = errors.New("it is no JSON object of strings")

// next is the name of the next member.
func (f flat) next() (string, error) {
	if err := f.until('"'); err != nil {
		return "", err
	}
	name, err := io.ReadAll(&unquoted{from: f.Reader})
	if err != nil {
		return "", err
	}
	return string(name), f.until(':')
}

// until skips past the byte wanted; the object must not end before it.
func (f flat) until(wanted byte) error {
	for {
		switch b, err := f.ReadByte(); {
		case err != nil:
			return err
		case b == wanted:
			return nil
		case b == '}' || b == '[':
			return errNotFlat
		}
	}
}

// value returns the string that follows, which must be read to its end; nil if it is not a string.
func (f flat) value() (io.Reader, error) {
	for {
		switch b, err := f.ReadByte(); {
		case err != nil:
			return nil, err
		case b == '"':
			return &unquoted{from: f.Reader}, nil
		case b == '{' || b == '[':
			return nil, errNotFlat
		case b != ' ' && b != '\n' && b != '\t':
			return nil, nil
		}
	}
}

// unquoted reads a JSON string to its closing quote; its opening quote has been read.
type unquoted struct {
	from *bufio.Reader
	rest []byte // of a character that did not fit
	over bool
}

func (u *unquoted) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if len(u.rest) > 0 {
			copied := copy(p[n:], u.rest)
			n, u.rest = n+copied, u.rest[copied:]
			continue
		}
		if u.over {
			return n, io.EOF
		}
		if n > 0 && u.from.Buffered() < 6 { // of an escape; what is there need not wait
			return n, nil
		}
		b, err := u.from.ReadByte()
		switch {
		case err != nil:
			return n, unexpected(err)
		case b == '"':
			u.over = true
		case b == '\\':
			if err := u.escape(); err != nil {
				return n, unexpected(err)
			}
		default:
			p[n] = b
			n++
		}
	}
	return n, nil
}

// escape reads an escape sequence after its backslash. Half a surrogate becomes what encoding/json makes of it.
func (u *unquoted) escape() error {
	text := []byte(`"\.`)
	if _, err := io.ReadFull(u.from, text[2:]); err != nil {
		return err
	}
	if text[2] == 'u' {
		text = append(text, 0, 0, 0, 0)
		if _, err := io.ReadFull(u.from, text[3:]); err != nil {
			return err
		}
	}
	var out string
	err := json.Unmarshal(append(text, '"'), &out)
	u.rest = []byte(out)
	return err
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// rejectedError says why the program rejected the request.
type rejectedError struct{ program, reason string }

func (e rejectedError) Error() string {
	return fmt.Sprintf("%s rejected the request: %s", e.program, e.reason)
}

// handledError is an error of the function that gets the lines.
type handledError struct{ error }

func (e handledError) Unwrap() error { return e.error }

func handled(err error) error {
	if err == nil {
		return nil
	}
	return handledError{err}
}
