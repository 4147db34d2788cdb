package cniserver

import (
	"context"
	"errors"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// Error codes of Fairlead (CNI spec, section 5, "Error": 100 and up are the
// plugin's own). The numbers up to 99 are the spec's, constants of package
// types.
const (
	// CodeInternal is any error that has no code of its own, a bug included.
	CodeInternal uint = 100
	// CodeNoAddress: no address could be allocated to the pod.
	CodeNoAddress uint = 101
	// CodeCheck: CHECK found that the attachment differs from the result of ADD.
	CodeCheck uint = 103
	// CodeForbidden: the caller is neither root nor the user of the agent.
	CodeForbidden uint = 105
)

// coded is an error that goes to the runtime with that code. errors.Is and errors.As find what it wraps, and a
// *types.Error, as in any error that has a code.
type coded struct {
	error
	code uint
}

func (e coded) Unwrap() error { return e.error }

func (e coded) As(target any) bool {
	t, ok := target.(**types.Error)
	if ok {
		*t = types.NewError(e.code, e.Error(), "")
	}
	return ok
}

// TryAgainLater returns err with the spec's code 11: the runtime retries. err says what the caller waits for.
func TryAgainLater(err error) error { return coded{err, types.ErrTryAgainLater} }

// NoAddress returns err with the code CodeNoAddress.
func NoAddress(err error) error { return coded{err, CodeNoAddress} }

// errorOf is the CNI error for err; verb is CNI_COMMAND. Joined errors become one line.
func errorOf(verb string, err error) *types.Error {
	if err == nil {
		return nil
	}
	var e *types.Error
	if errors.As(err, &e) && error(e) == err { //nolint:errorlint // it and nothing around it
		return e
	}
	code := CodeInternal
	switch {
	case e != nil:
		code = e.Code
	case verb == "STATUS": // whatever the reason, such as a daemon that times out
		code = types.ErrPluginNotAvailable
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code = types.ErrTryAgainLater
	case verb == "CHECK":
		code = CodeCheck
	}
	return types.NewError(code, strings.ReplaceAll(err.Error(), "\n", "; "), "")
}
