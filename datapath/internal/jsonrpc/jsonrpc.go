// Package jsonrpc sends one request to an Open vSwitch program over its unix socket, in JSON-RPC 1.0 (RFC 7047, 4).
package jsonrpc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Call decodes the reply into result. It ends with ctx: a program that hangs accepts the connection and never replies.
func Call(ctx context.Context, program, socket, method string, params, result any) error {
	return roundTrip(ctx, program, socket, method, params, func(from io.Reader) (err error) {
		for answers := json.NewDecoder(from); err == nil; {
			var answer struct {
				Method string
				Result json.RawMessage
				Error  any
			}
			switch err = answers.Decode(&answer); {
			case err != nil:
			case answer.Method != "": // a probe by the server
			case answer.Error != nil:
				return rejectedError{program, fmt.Sprint(answer.Error)}
			default:
				return handled(json.Unmarshal(answer.Result, result))
			}
		}
		return err
	})
}

// roundTrip sends a request and calls read with the reply.
func roundTrip(ctx context.Context, program, socket, method string, params any, read func(io.Reader) error) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("%s is down: %w", program, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if err = json.NewEncoder(conn).Encode(map[string]any{"id": 0, "method": method, "params": params}); err == nil {
		err = read(conn)
	}
	var rejected rejectedError
	var handled handledError
	switch {
	case err == nil || errors.As(err, &rejected):
		return err
	case errors.As(err, &handled):
		return handled.error
	}
	return fmt.Errorf("%s does not answer: %w", program, cmp.Or(ctx.Err(), err))
}
