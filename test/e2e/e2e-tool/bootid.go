package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// bootIDCommand is a createContainer hook of the OCI runtime specification (config.md, POSIX-platform Hooks). Nodes of
// a bed share a kernel, whose boot ID a new /proc would show; a container has to see its node's.
func bootIDCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "boot-id",
		Short:  "Show a container its node's boot ID; started by the container runtime",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return showBootID(cmd.InOrStdin()) },
	}
}

// showBootID reads the container's state (runtime.md) and bind-mounts the node's boot ID into its /proc. It runs in the
// container's mount namespace, which still sees the node's files.
func showBootID(in io.Reader) error {
	var state struct{ Bundle string }
	if err := json.NewDecoder(in).Decode(&state); err != nil {
		return fmt.Errorf("reading the state of the container: %w", err)
	}
	config, err := os.ReadFile(filepath.Join(state.Bundle, "config.json"))
	if err != nil {
		return err
	}
	var spec struct{ Root struct{ Path string } }
	if err := json.Unmarshal(config, &spec); err != nil {
		return fmt.Errorf("reading config.json of the container: %w", err)
	}
	root := spec.Root.Path
	if !filepath.IsAbs(root) {
		root = filepath.Join(state.Bundle, root)
	}
	file := filepath.Join(root, "/proc/sys/kernel/random/boot_id")
	if err := unix.Mount(host.OwnBootID(), file, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("binding the node's boot ID at %s: %w", file, err)
	}
	return nil
}
