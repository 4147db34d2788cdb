package apitest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// KCM is a kube-controller-manager with its podCIDR allocator and no other controller.
type KCM struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when the process has ended
}

// StartKCM starts a KCM with these flags, and returns when its allocator runs, or is disabled by them. The error
// contains its last output.
func (s *Server) StartKCM(ctx context.Context, flags ...string) (*KCM, error) {
	token, kubeconfig := s.path("admin.token"), s.path("admin.kubeconfig")
	if err := os.WriteFile(token, []byte(AdminToken), 0o600); err != nil {
		return nil, err
	}
	if err := Kubeconfig(kubeconfig, s.URL, s.CA(), token); err != nil {
		return nil, err
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	k := &KCM{log: s.path("kube-controller-manager.log"), done: make(chan struct{})}
	if err := os.RemoveAll(k.log); err != nil {
		return nil, err
	}
	k.cmd, err = s.start("kube-controller-manager", append([]string{"--kubeconfig=" + kubeconfig, "--leader-elect=false",
		"--controllers=node-ipam-controller", "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--cert-dir=" + s.path("kcm-certs"), "--kube-api-qps=1000", "--kube-api-burst=1000"}, flags...)...)
	if err != nil {
		return nil, err
	}
	go func() {
		_ = k.cmd.Wait() // the reason of the exit is in its log
		close(k.done)
	}()
	return k, k.await(ctx)
}

// await waits for the log line that the allocator has started, or is disabled.
func (k *KCM) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for !bytes.Contains(k.Log(), []byte("Starting range CIDR allocator")) &&
		!bytes.Contains(k.Log(), []byte(`skipping controller" controller="node-ipam-controller"`)) {
		select {
		case <-k.done:
			return fmt.Errorf("kube-controller-manager has ended:\n%s", tail(k.Log()))
		case <-ctx.Done():
			k.Stop()
			return fmt.Errorf("kube-controller-manager starts no allocator: %w:\n%s", ctx.Err(), tail(k.Log()))
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// Ended reports whether the KCM has exited.
func (k *KCM) Ended() bool {
	select {
	case <-k.done:
		return true
	default:
		return false
	}
}

// Log returns its output.
func (k *KCM) Log() []byte {
	data, _ := os.ReadFile(k.log) // missing: no output yet
	return data
}

// Stop stops it with SIGKILL.
func (k *KCM) Stop() {
	_ = k.cmd.Process.Kill() // it may have exited
	<-k.done
}

func tail(log []byte) []byte { return log[max(0, len(log)-3000):] }
