// Package exec runs commands in containers as a kubelet does, for "kubectl exec" and the like: the API server connects
// to it. A function of the caller runs the command.
package exec

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	osexec "os/exec"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// Container is where a command runs.
type Container struct{ Namespace, Pod, Name string }

// Run runs a command in a container. An *exec.ExitError of os/exec has its exit code.
type Run func(where Container, command []string, stdout, stderr io.Writer) error

// Serve answers the API server's requests at listener until that is closed.
func Serve(listener net.Listener, run Run) error {
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) { serve(w, r, run) })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	// SPDY takes over the connection, which HTTP/2 does not allow.
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"http/1.1"}}
	if err := server.Serve(tls.NewListener(listener, config)); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// selfSigned is a certificate that is not verified: the API server does that only with --kubelet-certificate-authority.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// serve handles one command: a connection with a stream for errors and one for each that the client requests.
func serve(w http.ResponseWriter, r *http.Request, run Run) {
	if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	query := r.URL.Query()
	wanted := 1
	for _, name := range []string{"input", "output", "error"} {
		if query.Get(name) == "1" {
			wanted++
		}
	}
	arrived := make(chan httpstream.Stream, wanted)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, replySent <-chan struct{}) error {
		go func() { <-replySent; arrived <- s }()
		return nil
	})
	if conn == nil {
		return // it has sent the error response
	}
	defer conn.Close()
	streams := map[string]io.ReadWriteCloser{}
	for range wanted {
		select {
		case s := <-arrived:
			streams[s.Headers().Get("streamType")] = s
		case <-time.After(10 * time.Second):
			return
		case <-conn.CloseChan():
			return
		}
	}
	writer := func(name string) io.Writer {
		if s := streams[name]; s != nil {
			return s
		}
		return io.Discard
	}
	where := Container{r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")}
	err := run(where, query["command"], writer("stdout"), writer("stderr"))
	_ = json.NewEncoder(writer("error")).Encode(outcome(err)) // the client may have disconnected
	for _, s := range streams {
		s.Close()
	}
	select { // the client closes the connection when it has read everything
	case <-conn.CloseChan():
	case <-time.After(5 * time.Second):
	}
}

// outcome is the status that the client gets when the command ends.
func outcome(err error) metav1.Status {
	s := metav1.Status{Status: metav1.StatusSuccess}
	if exit := (*osexec.ExitError)(nil); errors.As(err, &exit) {
		s.Status, s.Reason, s.Message = metav1.StatusFailure, remotecommand.NonZeroExitCodeReason, "command terminated with non-zero exit code"
		s.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType,
			Message: strconv.Itoa(exit.ExitCode())}}}
	} else if err != nil {
		s.Status, s.Reason, s.Message = metav1.StatusFailure, metav1.StatusReasonInternalError, strings.TrimSpace(err.Error())
	}
	return s
}
