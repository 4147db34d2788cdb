// Package sandbox does what a container runtime does for a pod's network: it creates the pod's network namespace on its
// node and calls the node's CNI plugins through libcni, as containerd does. Its records are in one file per pod,
// written before the sandbox is created, so that a later process finds it.
package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// State is the state of a pod's sandbox.
type State string

const (
	// Waiting has no sandbox: the last attempt failed, the next is due.
	Waiting State = "Waiting"
	// Creating has a sandbox whose ADD has not succeeded yet.
	Creating State = "Creating"
	// Running has the addresses in the result of ADD.
	Running State = "Running"
	// Detached has a namespace and no network: DEL was called manually.
	Detached State = "Detached"
	// Terminating waits for a DEL that must succeed.
	Terminating State = "Terminating"
	// HostNetwork pods use the node's network; CNI is not called for them.
	HostNetwork State = "HostNetwork"
)

// Record is one pod on one node.
type Record struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	Node      string `json:"node"`
	State     State  `json:"state"`
	// Since is when State was entered.
	Since time.Time `json:"since"`
	// Attempt counts the sandboxes created for the pod; the first is 1.
	Attempt int `json:"attempt"`
	// ContainerID is the CNI container ID of the present sandbox, empty if there is none.
	ContainerID string `json:"containerID,omitempty"`
	// Netns is the path of its network namespace on the node.
	Netns string `json:"netns,omitempty"`
	// Capabilities are the capability arguments of its ADD; DEL gets the same.
	Capabilities map[string]any `json:"capabilities,omitempty"`
	// IPs are the addresses of eth0 from the result of ADD, without masks.
	IPs []string `json:"ips,omitempty"`
	// LastError is the error of the last failed call; empty after a successful one.
	LastError string `json:"lastError,omitempty"`
	// ByHand marks a sandbox without a Pod, created by "lab cni NODE ADD". The runner ignores it.
	ByHand bool `json:"byHand,omitempty"`
}

// Pod returns "namespace/name".
func (r Record) Pod() string { return r.Namespace + "/" + r.Name }

// Enter sets the state and its time.
func (r *Record) Enter(s State) {
	if r.State != s {
		r.State, r.Since = s, time.Now()
	}
}

// Records is a directory of records.
type Records struct{ dir string }

// OpenRecords returns the records in dir.
func OpenRecords(dir string) Records { return Records{dir} }

func (rs Records) path(pod, ext string) string {
	return filepath.Join(rs.dir, strings.Replace(pod, "/", "_", 1)+ext)
}

// Load returns the record of a pod, "namespace/name", or nil if there is none.
func (rs Records) Load(pod string) (*Record, error) {
	data, err := os.ReadFile(rs.path(pod, ".json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the record of pod %s: %w", pod, err)
	}
	r := &Record{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("reading the record of pod %s: %w", pod, err)
	}
	return r, nil
}

// Save stores the record, atomically replacing the existing one.
func (rs Records) Save(r *Record) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	tmp := rs.path(r.Pod(), ".tmp")
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return fmt.Errorf("writing the record of pod %s: %w", r.Pod(), err)
	}
	if err := os.Rename(tmp, rs.path(r.Pod(), ".json")); err != nil {
		return fmt.Errorf("writing the record of pod %s: %w", r.Pod(), err)
	}
	return nil
}

// Forget deletes the record of a pod.
func (rs Records) Forget(pod string) error {
	if err := os.Remove(rs.path(pod, ".json")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("deleting the record of pod %s: %w", pod, err)
	}
	return nil
}

// List returns all records, by pod.
func (rs Records) List() ([]*Record, error) {
	entries, err := os.ReadDir(rs.dir)
	if err != nil {
		return nil, fmt.Errorf("listing the pods: %w", err)
	}
	var out []*Record
	for _, e := range entries {
		pod, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok {
			continue
		}
		r, err := rs.Load(strings.Replace(pod, "_", "/", 1))
		if err != nil {
			return nil, err
		}
		if r != nil {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *Record) int { return strings.Compare(a.Pod(), b.Pod()) })
	return out, nil
}

// Lock keeps other processes, and other callers in this one, from working on the pod until unlock is called.
func (rs Records) Lock(pod string) (unlock func(), err error) {
	f, err := os.OpenFile(rs.path(pod, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking pod %s: %w", pod, err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking pod %s: %w", pod, err)
	}
	return func() { f.Close() }, nil
}
