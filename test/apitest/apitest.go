// Package apitest runs etcd and a kube-apiserver on loopback, without root, for the tests of one package. Both end with
// the process that started them, however it ends, and all their files are in one directory.
package apitest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/test/objects"
)

// AdminToken is the token of a user with all rights. It is valid independently of etcd's contents.
const AdminToken = "admin"

// startTimeout is the time limit for an API server to be ready: 5 s on an idle machine.
const startTimeout = 2 * time.Minute

// Server is an etcd and a kube-apiserver.
type Server struct {
	// URL is the API server's; it does not change over restarts.
	URL string
	// Args are further arguments of the API server, from its next start on.
	Args []string

	dir, program string
	ports        [3]int // etcd, its peers, API server
	etcd, api    *exec.Cmd
	admin        *kubernetes.Clientset
	objects      *objects.Client // the administrator's, for any kind
}

// Start starts both and returns when the API server is ready. program is the
// binary of package kubebin, dir an empty directory.
func Start(ctx context.Context, program, dir string) (*Server, error) {
	s := &Server{dir: dir, program: program}
	if err := s.writeFiles(); err != nil {
		return nil, err
	}
	if err := s.pickPorts(); err != nil {
		return nil, err
	}
	s.URL = fmt.Sprintf("https://127.0.0.1:%d", s.ports[2])
	if err := s.makeClients(); err != nil {
		return nil, err
	}
	if err := s.startAll(ctx); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// writeFiles writes keys, a certificate and tokens. The API server would generate a certificate itself, with RSA keys:
// a tenth of its startup cost.
func (s *Server) writeFiles() error {
	serving, err := s.writeKey("apiserver.key")
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "apitest"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &serving.PublicKey, serving)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.CA(), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600); err != nil {
		return err
	}
	if _, err := s.writeKey("sa.key"); err != nil {
		return err
	}
	return os.WriteFile(s.path("tokens.csv"), []byte(AdminToken+",admin,admin,system:masters\n"), 0o600)
}

func (s *Server) writeKey(name string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, os.WriteFile(s.path(name), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

func (s *Server) pickPorts() error {
	for i := range s.ports {
		for s.ports[i] == 0 || slices.Contains(s.ports[:i], s.ports[i]) {
			var err error
			if s.ports[i], err = FreePort(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Server) makeClients() error {
	config := &rest.Config{Host: s.URL, BearerToken: AdminToken, QPS: 1000, Burst: 1000,
		WarningHandler: rest.NoWarnings{}, TLSClientConfig: rest.TLSClientConfig{CAFile: s.CA()}}
	var err error
	if s.admin, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	s.objects, err = objects.New(config)
	return err
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) startAll(ctx context.Context) error {
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", s.ports[0]), fmt.Sprintf("http://127.0.0.1:%d", s.ports[1])
	var err error
	s.etcd, err = s.start("etcd", "--name=test", "--data-dir="+s.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+client, "--advertise-client-urls="+client, "--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer, "--initial-cluster=test="+peer)
	if err != nil {
		return err
	}
	return s.StartAPI(ctx)
}

func (s *Server) start(part string, args ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(s.path(part+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(s.program, append([]string{part}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = append(os.Environ(), "GOGC=400") // its start is a fifth cheaper, for 100 MB of memory
	return cmd, cmd.Start()
}

// StartAPI starts the API server after KillAPI and waits until it is ready.
func (s *Server) StartAPI(ctx context.Context) error {
	var err error
	s.api, err = s.start("kube-apiserver", append(slices.Clone(s.Args), fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", s.ports[0]),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", s.ports[2]),
		"--tls-cert-file="+s.CA(), "--tls-private-key-file="+s.path("apiserver.key"),
		"--token-auth-file="+s.path("tokens.csv"), "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+s.path("sa.key"),
		"--service-account-signing-key-file="+s.path("sa.key"), "--service-cluster-ip-range=10.96.0.0/16",
		"--profiling=false", "--allow-privileged=true", "--disable-admission-plugins=ServiceAccount")...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(s.path("kube-apiserver.log"))
			return fmt.Errorf("kube-apiserver is not ready: %w. Its last log lines:\n%s", err, log[max(0, len(log)-3000):])
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *Server) ready(ctx context.Context) error {
	if err := s.api.Process.Signal(syscall.Signal(0)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := s.admin.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
		return err
	}
	_, err := s.admin.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	return err
}

// Admin is a client with all rights.
func (s *Server) Admin() *kubernetes.Clientset { return s.admin }

// Objects is a client with all rights for objects of any kind.
func (s *Server) Objects() *objects.Client { return s.objects }

// KillAPI stops the API server with SIGKILL.
func (s *Server) KillAPI() { kill(s.api) }

// EndAPI stops the API server with SIGTERM, so that it closes its watches itself, which it does at once. It would then
// wait up to a minute for other requests, which is cut short.
func (s *Server) EndAPI() error {
	if err := s.api.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	cut := time.AfterFunc(5*time.Second, func() { _ = s.api.Process.Kill() }) // it may have exited
	defer cut.Stop()
	_ = s.api.Wait() // "signal: killed"
	return nil
}

// Freeze stops the API server with SIGSTOP: connections stay open without an answer.
func (s *Server) Freeze() error { return freeze(s.api.Process) }

// freeze stops a process, and returns when all its threads have stopped: proc(5), the state of each. They may continue
// for a moment after the signal.
func freeze(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		if stopped, err := stopped(p.Pid); err != nil || stopped {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// stopped reports whether all threads of a process are.
func stopped(pid int) (bool, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return false, err
	}
	for _, f := range files {
		stat, err := os.ReadFile(f)
		if err != nil {
			return false, err
		}
		if _, state, _ := bytes.Cut(stat, []byte(") ")); !bytes.HasPrefix(state, []byte("T")) {
			return false, nil
		}
	}
	return true, nil
}

// Thaw undoes Freeze.
func (s *Server) Thaw() error { return s.api.Process.Signal(syscall.SIGCONT) }

// Empty gives the API server an empty etcd: a cluster without objects, at the same URL.
func (s *Server) Empty(ctx context.Context) error {
	s.Stop()
	if err := os.RemoveAll(s.path("etcd")); err != nil {
		return err
	}
	return s.startAll(ctx)
}

// Backup keeps the data that etcd has now. restore ends both, and starts them with that data.
func (s *Server) Backup() (restore func(context.Context) error, err error) {
	dir := s.path("backup")
	if err := errors.Join(os.RemoveAll(dir), freeze(s.etcd.Process)); err != nil {
		return nil, err
	}
	err = os.CopyFS(dir, os.DirFS(s.path("etcd")))
	return func(ctx context.Context) error {
		s.Stop()
		if err := errors.Join(os.RemoveAll(s.path("etcd")), os.CopyFS(s.path("etcd"), os.DirFS(dir))); err != nil {
			return err
		}
		return s.startAll(ctx)
	}, errors.Join(err, s.etcd.Process.Signal(syscall.SIGCONT))
}

// Stop stops both with SIGKILL.
func (s *Server) Stop() {
	kill(s.api)
	kill(s.etcd)
}

func kill(cmd *exec.Cmd) {
	if cmd == nil || cmd.Process == nil {
		return
	}
	if err := cmd.Process.Kill(); err == nil || errors.Is(err, os.ErrProcessDone) {
		_ = cmd.Wait() // "signal: killed"
	}
}

// KubectlCommand is kubectl as the administrator, before its arguments.
func (s *Server) KubectlCommand() []string {
	return []string{s.program, "kubectl", "--server=" + s.URL, "--token=" + AdminToken,
		"--certificate-authority=" + s.CA(), "--kubeconfig=/dev/null", "--cache-dir=" + s.path("kubectl")}
}

// Kubectl runs kubectl as the administrator.
func (s *Server) Kubectl(ctx context.Context, args ...string) error {
	command := append(s.KubectlCommand(), args...)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %v: %w: %s", args, err, out)
	}
	return nil
}

// AgentToken is a token of the agents' ServiceAccount, which must have been applied.
func (s *Server) AgentToken(ctx context.Context) (string, error) {
	return s.Token(ctx, "fairlead-agent")
}

// Token is a token of a ServiceAccount in kube-system.
func (s *Server) Token(ctx context.Context, account string) (string, error) {
	r, err := s.admin.CoreV1().ServiceAccounts(metav1.NamespaceSystem).CreateToken(ctx, account,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return r.Status.Token, nil
}

// CA is the path of the certificate that authenticates the API server.
func (s *Server) CA() string { return s.path("apiserver.crt") }

// Kubeconfig writes a kubeconfig for an API server at url that the certificate in the file ca authenticates. The token
// is in tokenFile.
func Kubeconfig(path, url, ca, tokenFile string) error {
	return os.WriteFile(path, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c,
  clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}],
  users: [{name: u, user: {tokenFile: %q}}],
  contexts: [{name: c, context: {cluster: c, user: u}}]}`, url, ca, tokenFile), 0o600)
}
