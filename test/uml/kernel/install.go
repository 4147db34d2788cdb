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

// need is a requirement of the build, a file or program, and the Debian package that contains it.
type need struct{ what, debian string }

var tools = []need{
	{"gcc", "build-essential"},
	{"make", "build-essential"},
	{"patch", "patch"},
	{"xz", "xz-utils"},
	{"bc", "bc"},
	{"bison", "bison"},
	{"flex", "flex"},
	{"m4", "m4"},
	{keyring, "debian-archive-keyring"},
}

// install installs the missing ones of needs.
func install(ctx context.Context, needs []need, progress io.Writer) error {
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
