package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
)

// ExecNode replaces this process with argv on a host of the lab, with Fairlead's programs in its PATH, as if they were
// installed. It returns only if it fails.
func (l *Lab) ExecNode(name string, argv []string) error {
	h, err := l.Host(name)
	if err != nil {
		return err
	}
	if err := os.Setenv("PATH", l.spec.BinDir+":"+os.Getenv("PATH")); err != nil {
		return err
	}
	return h.Exec("", argv, host.Env())
}

// ExecPod replaces this process with argv on the pod's node, in the pod's network namespace. The process ends with the
// pod. It returns only if it fails.
func (l *Lab) ExecPod(pod string, argv []string) error {
	rec, err := l.sandboxOf(pod)
	if err != nil {
		return err
	}
	h, err := l.Host(rec.Node)
	if err != nil {
		return err
	}
	return h.Exec(rec.Netns, argv, append(host.Env(), sandbox.Marker+"="+rec.ContainerID))
}

// sandboxOf returns the pod's record, and an error if it has no sandbox.
func (l *Lab) sandboxOf(pod string) (*sandbox.Record, error) {
	if err := checkPodName(pod); err != nil {
		return nil, err
	}
	rec, err := l.Records().Load(pod)
	if err != nil {
		return nil, err
	}
	switch {
	case rec == nil:
		return nil, fmt.Errorf("there is no pod %s (lab get pods lists them)", pod)
	case rec.ContainerID == "" && rec.State != sandbox.HostNetwork:
		return nil, fmt.Errorf("pod %s has no network namespace now: %s %s", pod, rec.State, rec.LastError)
	}
	return rec, nil
}

// checkPodName also prevents paths outside of the directory of records.
func checkPodName(pod string) error {
	namespace, name, ok := strings.Cut(pod, "/")
	if !ok || namespace == "" || name == "" || strings.ContainsAny(namespace, "/_.") || strings.ContainsAny(name, "/_") {
		return fmt.Errorf("%q is not a pod: write NAMESPACE/NAME", pod)
	}
	return nil
}

// NodeCommand prepares argv to run on a host of the lab. The process that it starts becomes argv: signals, exit code
// and PID are argv's.
func (l *Lab) NodeCommand(ctx context.Context, name string, argv ...string) *exec.Cmd {
	return l.command(ctx, "node", name, argv)
}

// PodCommand prepares argv to run in the network namespace of a pod, "namespace/name", as NodeCommand does.
func (l *Lab) PodCommand(ctx context.Context, pod string, argv ...string) *exec.Cmd {
	return l.command(ctx, "pod", pod, argv)
}

func (l *Lab) command(ctx context.Context, verb, where string, argv []string) *exec.Cmd {
	return exec.CommandContext(ctx, filepath.Join(l.spec.BinDir, "lab"),
		append([]string{verb, "--dir", l.dir, where, "--"}, argv...)...)
}

// NodeExec runs argv on a host of the lab, as NodeCommand does, and returns its output, both streams. An error contains
// it. It does not start the program lab for that, which would cost 10 ms of CPU time.
func (l *Lab) NodeExec(ctx context.Context, name string, argv ...string) (string, error) {
	h, err := l.Host(name)
	if err != nil {
		return "", err
	}
	path := l.spec.BinDir + ":" + os.Getenv("PATH")
	return run(ctx, name, path, append(host.Env(), "PATH="+path), argv, h.Do)
}

// PodExec runs argv in the network namespace of a pod, as NodeExec does.
func (l *Lab) PodExec(ctx context.Context, pod string, argv ...string) (string, error) {
	rec, err := l.sandboxOf(pod)
	if err != nil {
		return "", err
	}
	h, err := l.Host(rec.Node)
	if err != nil {
		return "", err
	}
	do := h.Do
	if rec.Netns != "" { // otherwise it uses its node's network
		do = func(f func() error) error { return h.DoNet(rec.Netns, f) }
	}
	return run(ctx, pod, os.Getenv("PATH"), append(host.Env(), sandbox.Marker+"="+rec.ContainerID), argv, do)
}

// run runs argv with this environment and returns its output. do calls a function in the namespaces; where names them
// in errors.
func run(ctx context.Context, where, path string, env, argv []string, do func(func() error) error) (string, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	var cmd *exec.Cmd
	var out *host.Output
	err = do(func() error {
		program, err := lookPath(path, argv[0])
		if err != nil {
			return err
		}
		cmd = exec.CommandContext(ctx, program, argv[1:]...)
		cmd.Args[0], cmd.Env, out = argv[0], env, host.Collect(cmd, argv[0])
		if _, err := os.Stat(cwd); err == nil {
			cmd.Dir = cwd
		}
		return cmd.Start()
	})
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w", where, strings.Join(argv, " "), err)
	}
	err = cmd.Wait()
	text := out.Text(err)
	if err != nil {
		err = fmt.Errorf("%s: %s: %w\n%s", where, strings.Join(argv, " "), err, text)
	}
	return text, err
}

// lookPath searches for a program in the directories of path, as the calling thread sees them.
func lookPath(path, program string) (string, error) {
	if strings.Contains(program, "/") {
		return program, nil
	}
	for _, dir := range filepath.SplitList(path) {
		if found, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("%s: %w", program, exec.ErrNotFound)
}
