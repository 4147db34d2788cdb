package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
)

// serveSocket serves h like serveHTTP, on a unix socket: of several controllers on one node each has its own. A socket
// left by an earlier process is replaced.
func serveSocket(ctx context.Context, path string, h http.Handler) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("serving health on %s: %w", path, err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("serving health on %s: %w", path, err)
	}
	return serve(ctx, path, listener, h)
}

// Query requests "healthz" or "readyz" from the controller that serves the socket. It returns nil on success, else what
// the controller reports, or why it did not reply.
func Query(ctx context.Context, socket, what string) error {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://controller/"+what, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("no answer: %w", errors.Unwrap(err))
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 4096))
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return errors.New(strings.TrimSpace(string(text)))
	}
	return nil
}
