// Command once builds what is built once on a machine, takes minutes and is kept by package onetime: the kernel in
// which tests run, and the Kubernetes programs. Tests would build them as well, but the output of a running test is not
// visible.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/fairlead-cni/fairlead/test/kubebin"
	"github.com/fairlead-cni/fairlead/test/uml/kernel"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := build(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "once:", err)
		os.Exit(1)
	}
}

func build(ctx context.Context) error {
	if _, err := kernel.Get(ctx, os.Stderr); err != nil {
		return err
	}
	_, err := kubebin.Get(ctx, os.Stderr)
	return err
}
