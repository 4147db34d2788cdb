package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/cli"
)

// Errors on the command line or in the config file are reported before anything is done, with exit code 2.
func TestInvalidInput(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := file("good", "apiPort: 10349\nnodeIPAM: {enableNodeIPAM: false}\nfeatureGates: {AntreaIPAM: true}\n")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--check-config", "--config", good}, ""},
		{[]string{"--check-config"}, ""},
		{[]string{"--no-such-flag"}, "unknown flag"},
		{[]string{"run"}, `"run": fairlead-controller takes no arguments, only flags`},
		{[]string{"ask", "--health-socket", "/x"}, "unknown probe \"\": want healthz or readyz"},
		{[]string{"ask", "healthz"}, "--health-socket is required"},
		{[]string{"--config", filepath.Join(dir, "absent")}, "reading the controller's config"},
		{[]string{"--config", file("bad", "apiPrt: 1\n")}, "unknown key; did you mean apiPort?"},
		{[]string{"--config", good}, "clientConnection.kubeconfig is not set"},
		{[]string{"--kubeconfig", filepath.Join(dir, "absent")}, "absent: no such file"},
	} {
		cmd := command()
		cmd.SetArgs(c.args)
		err := cmd.ExecuteContext(t.Context())
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%v: %v", c.args, err)
		case c.want != "" && (!errors.As(err, new(cli.UsageError)) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%v: %v, want %s", c.args, err, c.want)
		}
	}
}
