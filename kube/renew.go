package kube

import (
	"crypto/tls"
	"errors"
	"net/http"
	"sync"
	"time"
)

// renewing is a connection that is replaced, with the current kubeconfig, when client and server no longer accept each
// other's credentials. client-go reloads files that a kubeconfig names within minutes, but not the token or certificate
// in the kubeconfig itself.
type renewing struct {
	connect func() (http.RoundTripper, error)

	mu   sync.Mutex
	now  http.RoundTripper
	made time.Time
}

// renewEvery bounds how often the kubeconfig is read.
const renewEvery = 5 * time.Second

// RoundTrip implements http.RoundTripper.
func (r *renewing) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	now := r.now
	r.mu.Unlock()
	resp, err := now.RoundTrip(req)
	unknown := err == nil && resp.StatusCode == http.StatusUnauthorized
	if !unknown && !certificateRejected(err) {
		return resp, err
	}
	next := r.renew()
	if next == nil || req.Body != nil { // a body can be sent only once
		return resp, err
	}
	if unknown {
		resp.Body.Close()
	}
	return next.RoundTrip(req)
}

// certificateRejected reports whether one side did not accept the other's certificate.
func certificateRejected(err error) bool {
	verify, alert := (*tls.CertificateVerificationError)(nil), tls.AlertError(0)
	return errors.As(err, &verify) || errors.As(err, &alert)
}

// renew returns the new connection. It is nil if one was created just before, and if the kubeconfig cannot be used: it
// may be about to be replaced.
func (r *renewing) renew() http.RoundTripper {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.made) < renewEvery {
		return nil
	}
	r.made = time.Now()
	next, err := r.connect()
	if err != nil {
		return nil
	}
	r.now = next
	return next
}
