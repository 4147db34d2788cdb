package kernel

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// needs are the build's requirements: a file or program, and the Debian package that contains it.
var needs = []struct{ what, debian string }{
	{source, "linux-source-6.12"},
	{"gcc", "build-essential"},
	{"make", "build-essential"},
	{"patch", "patch"},
	{"xz", "xz-utils"},
	{"bc", "bc"},
	{"bison", "bison"},
	{"flex", "flex"},
	{"m4", "m4"},
}

// install installs the missing requirements of the build.
func install(ctx context.Context, progress io.Writer) error {
	var missing []string
	for _, n := range needs {
		if _, err := exec.LookPath(n.what); err == nil {
			continue
		}
		if _, err := os.Stat(n.what); err != nil {
			missing = append(missing, n.debian)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	get := append([]string{"apt-get", "install", "-q", "-y", "--no-install-recommends"}, missing...)
	if os.Geteuid() != 0 {
		return fmt.Errorf("packages are missing. As root: %s", strings.Join(get, " "))
	}
	fmt.Fprintln(progress, "uml-kernel: installing", strings.Join(missing, " "))
	if err := run(ctx, command{argv: []string{"apt-get", "update", "-q"}}); err != nil {
		return err
	}
	return run(ctx, command{argv: get})
}

// endWithUs makes a command end, with all processes that it started, when its context does, and when this process dies.
func endWithUs(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
