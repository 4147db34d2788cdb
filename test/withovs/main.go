// Command withovs runs a command, such as a test or a lab, on another release of Open vSwitch than the installed one.
//
//	go run ./test/withovs 3.5 go test -count=1 ./openflow/...
//	go run ./test/withovs 3.5 bin/lab up
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/ovsrelease"
)

func main() {
	fmt.Fprintln(os.Stderr, "withovs:", run(os.Args[1:]))
	os.Exit(1)
}

// run returns only if it fails.
func run(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: withovs RELEASE COMMAND [ARGUMENT...]; there is " + strings.Join(ovsrelease.Releases(), ", "))
	}
	release, argv := args[0], args[1:]
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := ovsrelease.Get(ctx, release, os.Stderr)
	if err != nil {
		return err
	}
	for name, value := range ovsrelease.Environ(release, dir) {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	version, err := exec.CommandContext(ctx, "ovs-vswitchd", "--version").Output()
	if err == nil {
		err = ovsrelease.Verify(string(version))
	}
	if err != nil {
		return fmt.Errorf("ovs-vswitchd --version: %w", err)
	}
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "withovs: %s, %s\n", strings.TrimSpace(string(version)), dir)
	return fmt.Errorf("starting %s: %w", program, unix.Exec(program, argv, os.Environ()))
}
