package host

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Run runs cmd and includes its output in the error. Within Do it runs on the host.
func Run(cmd *exec.Cmd) error {
	cmd.Env = Env()
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	text := strings.TrimSpace(string(out))
	if text == "" {
		return fmt.Errorf("%s: %w", filepath.Base(cmd.Path), err)
	}
	return errors.New(filepath.Base(cmd.Path) + ": " + text)
}

// Env is the environment without the variables that change the default paths of Open vSwitch's programs, or point
// kubectl to the user's own clusters. They are removed, not overridden: if a variable is set twice, a program may use
// the first value.
func Env() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "OVS_") && !strings.HasPrefix(v, "KUBE") {
			env = append(env, v)
		}
	}
	return env
}
