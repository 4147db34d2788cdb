package kube

import (
	"net/http"
	"sync/atomic"
)

// Requests counts requests to the API server by method, watches and those that fail as well.
type Requests struct {
	get, post, put, patch, deleted atomic.Uint64
}

// Methods are the HTTP methods that are counted.
func Methods() []string {
	return []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
}

// Of returns how many requests of a method there were; zero for one that is not counted.
func (r *Requests) Of(method string) uint64 {
	if c := r.counter(method); c != nil {
		return c.Load()
	}
	return 0
}

func (r *Requests) counter(method string) *atomic.Uint64 {
	switch method {
	case http.MethodGet:
		return &r.get
	case http.MethodPost:
		return &r.post
	case http.MethodPut:
		return &r.put
	case http.MethodPatch:
		return &r.patch
	case http.MethodDelete:
		return &r.deleted
	}
	return nil
}

// counting counts what goes through a connection.
type counting struct {
	http.RoundTripper
	requests *Requests
}

// RoundTrip implements http.RoundTripper.
func (c counting) RoundTrip(req *http.Request) (*http.Response, error) {
	if n := c.requests.counter(req.Method); n != nil {
		n.Add(1)
	}
	return c.RoundTripper.RoundTrip(req)
}
