package sandbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/containernetworking/cni/pkg/types"
)

// Marker is the environment variable that holds the container ID in every process of a pod. Processes are found by it
// and not by their network namespace, which a CNI plugin or an agent enters, too.
const Marker = "FAIRLEAD_LAB_SANDBOX"

// netnsDir is where containerd pins the namespaces of pods.
const netnsDir = "/run/netns"

// Create creates a sandbox for the record, which must have none: a new container ID and an empty network namespace. pod
// may be nil; it has the capability arguments. If Create fails, Destroy removes what exists.
func (rs Records) Create(c CNI, r *Record, pod *corev1.Pod) error {
	r.Capabilities = nil
	if pod != nil {
		var err error
		if r.Capabilities, err = capabilities(pod); err != nil {
			return err
		}
	}
	var id [32]byte
	rand.Read(id[:]) // never fails (crypto/rand)
	r.ContainerID = hex.EncodeToString(id[:])
	r.Netns = filepath.Join(netnsDir, "cni-"+r.ContainerID[:12])
	r.Attempt++
	r.Enter(Creating)
	if err := rs.Save(r); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Node.Private(netnsDir), 0o755); err != nil {
		return err
	}
	return c.Node.MakeNetns(r.Netns)
}

// Attach calls ADD for the record's sandbox and records the addresses of the result.
func (rs Records) Attach(ctx context.Context, c CNI, r *Record) (types.Result, error) {
	result, err := c.Add(ctx, r)
	if err == nil {
		r.IPs, err = addresses(result)
	}
	if err != nil {
		r.LastError = err.Error()
		return result, errors.Join(err, rs.Save(r))
	}
	r.LastError = ""
	r.Enter(Running)
	return result, rs.Save(r)
}

// Detach calls DEL for the record's sandbox, and keeps the namespace.
func (rs Records) Detach(ctx context.Context, c CNI, r *Record) error {
	if err := c.Del(ctx, r); err != nil {
		r.LastError = err.Error()
		return errors.Join(err, rs.Save(r))
	}
	r.IPs, r.LastError = nil, ""
	r.Enter(Detached)
	return rs.Save(r)
}

// Destroy removes the record's sandbox as a runtime does: the processes of the pod first, then DEL, and the namespace
// only when DEL has succeeded. A sandbox that is partly gone, or was never created, is not an error.
func (rs Records) Destroy(ctx context.Context, c CNI, r *Record) error {
	if r.ContainerID == "" {
		return nil
	}
	err := killMarked(Marker + "=" + r.ContainerID)
	if err == nil {
		err = c.Del(ctx, r)
	}
	if err == nil {
		err = c.Node.RemoveNetns(r.Netns)
	}
	if err != nil {
		r.LastError = err.Error()
		return errors.Join(err, rs.Save(r))
	}
	r.ContainerID, r.Netns, r.IPs, r.Capabilities = "", "", nil, nil
	r.Enter(Waiting)
	return rs.Save(r)
}

// killMarked kills the processes with variable, "NAME=value", in the environment that they started with.
func killMarked(variable string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("listing the processes: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil || !hasVariable(environ, variable) {
			continue
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("killing process %d of the pod: %w", pid, err)
		}
	}
	return nil
}

func hasVariable(environ []byte, variable string) bool {
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		if string(v) == variable {
			return true
		}
	}
	return false
}
