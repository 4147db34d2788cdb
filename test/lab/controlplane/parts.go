package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// Part is a component of the control plane.
type Part string

// The components, in the order in which they are started.
const (
	Etcd      Part = "etcd"
	APIServer Part = "apiserver"
	KCM       Part = "kcm" // kube-controller-manager
	Scheduler Part = "scheduler"
)

// Parts are the components of every control plane, in the order in which they are started.
func Parts() []Part { return []Part{Etcd, APIServer, KCM} }

// Parts are the components of this control plane, in the order in which they are started.
func (p Plane) Parts() []Part {
	if len(p.Kubelets) == 0 {
		return Parts()
	}
	return append(Parts(), Scheduler)
}

// program is the component's name in kubeparts.
func (p Part) program() string {
	switch p {
	case APIServer:
		return "kube-apiserver"
	case KCM:
		return "kube-controller-manager"
	case Scheduler:
		return "kube-scheduler"
	default:
		return string(p)
	}
}

// Flags are the flags of a program, without the leading dashes.
type Flags map[string]string

// ParseFlags reads "flag=value" of each entry. "flag-" removes one of the lab's own flags.
func ParseFlags(set []string) (Flags, error) {
	out := Flags{}
	for _, s := range set {
		name, value, ok := strings.Cut(s, "=")
		name = strings.TrimPrefix(name, "--")
		if bare, remove := strings.CutSuffix(name, "-"); remove && !ok {
			name, value, ok = bare, removed, true
		}
		if !ok || name == "" {
			return nil, fmt.Errorf("%q is not FLAG=VALUE, nor FLAG- to leave a flag out", s)
		}
		out[name] = value
	}
	return out, nil
}

// FlagsOfParts groups "PART.FLAG=VALUE" and "PART.FLAG-" by component, which must be one of parts.
func FlagsOfParts(set []string, parts []Part) (map[Part]Flags, error) {
	byPart := map[Part][]string{}
	for _, s := range set {
		part, flag, ok := strings.Cut(s, ".")
		if !ok || !slices.Contains(parts, Part(part)) {
			return nil, fmt.Errorf("%q is not PART.FLAG=VALUE with a PART of %v", s, parts)
		}
		byPart[Part(part)] = append(byPart[Part(part)], flag)
	}
	out := map[Part]Flags{}
	for part, flags := range byPart {
		var err error
		if out[part], err = ParseFlags(flags); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// removed is a value that no flag has.
const removed = "\x00"

// args is the command line of the flags.
func (f Flags) args() []string {
	var args []string
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if f[name] != removed {
			args = append(args, "--"+name+"="+f[name])
		}
	}
	return args
}

func (p Plane) process(part Part) host.Process {
	return host.Process{Host: p.Host, Name: part.program()}
}

// PID is the component's process ID, 0 if it is not running.
func (p Plane) PID(part Part) int { return p.process(part).PID() }

// Log is the path of the component's output.
func (p Plane) Log(part Part) string { return p.process(part).Log() }

// Tail is the end of the log, at most that many lines.
func (p Plane) Tail(part Part, lines int) string { return p.process(part).Tail(lines) }

// Start starts a component and waits until it serves. The flags in set are kept for later starts.
func (p Plane) Start(ctx context.Context, part Part, set Flags) error {
	flags, err := p.allFlags(part, set)
	if err != nil {
		return err
	}
	// Less garbage collection makes the API server's start, most of its work in a lab, a fifth cheaper, at the cost of
	// 100 MB of memory.
	argv := append([]string{"env", "GOGC=400", p.Program, part.program()}, flags.args()...)
	if err := p.process(part).Start(argv...); err != nil {
		return err
	}
	if err := p.await(ctx, part); err != nil {
		return fmt.Errorf("waiting for %s: %w\nits last log lines:\n%s", part.program(), err, p.process(part).Tail(8))
	}
	if part == KCM {
		return p.show(ctx, append([]string{part.program()}, flags.args()...))
	}
	return nil
}

// Stop stops a component with SIGTERM and waits until it has exited.
func (p Plane) Stop(ctx context.Context, part Part) error {
	p.showEnd(ctx, part)
	return p.process(part).End(ctx, unix.SIGTERM)
}

// showEnd marks the Pod of kube-controller-manager as not ready, if the API server is reachable.
func (p Plane) showEnd(ctx context.Context, part Part) {
	if part == KCM && p.PID(APIServer) != 0 {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_ = p.showReady(ctx, corev1.ConditionFalse) // best effort: the process stops either way
	}
}

// Kill stops a component with SIGKILL.
func (p Plane) Kill(ctx context.Context, part Part) error {
	p.showEnd(ctx, part)
	return p.process(part).End(ctx, unix.SIGKILL)
}

// Restart stops a component with SIGTERM and starts it again, with the changes in set.
func (p Plane) Restart(ctx context.Context, part Part, set Flags) error {
	if err := p.Stop(ctx, part); err != nil {
		return err
	}
	return p.Start(ctx, part, set)
}

// Pause stalls a component (SIGSTOP): its connections stay open without an answer.
func (p Plane) Pause(part Part) error { return p.process(part).Signal(unix.SIGSTOP) }

// Resume continues a stalled component.
func (p Plane) Resume(part Part) error { return p.process(part).Signal(unix.SIGCONT) }

// Wipe deletes all objects of the cluster: it stops all components, deletes etcd's data and starts them again.
func (p Plane) Wipe(ctx context.Context) error {
	parts := p.Parts()
	for _, part := range slices.Backward(parts) {
		if err := p.Kill(ctx, part); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(p.Host.Private(etcdDir)); err != nil {
		return fmt.Errorf("deleting etcd's data: %w", err)
	}
	return p.StartAll(ctx, func(Part) {})
}

// StartAll starts the components that are not running, in their order; progress is called for each.
func (p Plane) StartAll(ctx context.Context, progress func(Part)) error {
	for _, part := range p.Parts() {
		if p.PID(part) != 0 {
			continue
		}
		progress(part)
		if err := p.Start(ctx, part, nil); err != nil {
			return err
		}
	}
	return nil
}

// allFlags are the flags for the start of a component. Those in set are kept.
func (p Plane) allFlags(part Part, set Flags) (Flags, error) {
	kept, err := p.keep(part, set)
	if err != nil {
		return nil, fmt.Errorf("the flags of %s: %w", part.program(), err)
	}
	flags := p.flags(part)
	maps.Copy(flags, kept)
	return flags, nil
}

// keep adds set to the component's kept flags, and returns both.
func (p Plane) keep(part Part, set Flags) (Flags, error) {
	file := p.Host.Private("/run/lab/" + part.program() + ".flags")
	kept := Flags{}
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &kept)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if len(set) == 0 {
		return kept, nil // others may read the file at the same time
	}
	maps.Copy(kept, set)
	if data, err = json.Marshal(kept); err != nil {
		return nil, err
	}
	if err := os.WriteFile(file+".new", data, 0o644); err != nil {
		return nil, err
	}
	return kept, os.Rename(file+".new", file)
}
