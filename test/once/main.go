// Command once builds what takes minutes and is built once per machine (package onetime): the kernel in which tests
// run, the Kubernetes programs, Helm, Multus and containerd, and another release of Open vSwitch. Tests would build
// them as well, but the output of a running test is not visible.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/fairlead-cni/fairlead/test/kubebin"
	"github.com/fairlead-cni/fairlead/test/ovsrelease"
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
	type get = func(context.Context, io.Writer) (string, error)
	for _, get := range []get{kubebin.Get, kubebin.GetHelm, kubebin.GetMultus, kubebin.GetContainerd} {
		if _, err := get(ctx, os.Stderr); err != nil {
			return err
		}
	}
	for _, release := range ovsrelease.Releases() {
		if _, err := ovsrelease.Get(ctx, release, os.Stderr); err != nil {
			return err
		}
	}
	return nil
}
