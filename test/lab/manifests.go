package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/manifest"
)

func applyCommand(dir *string) *cobra.Command {
	var files []string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Store manifests of Pods, Nodes, Namespaces and IPPools",
		Long: `Store manifests, where all agents and the pod runner see them. A Pod with spec.nodeName is
made on that node. Manifests are read strictly: what is unknown or misspelt is refused, and
then nothing is changed. In a lab with Kubernetes this is
kubectl apply --server-side --force-conflicts, for objects of any kind.`,
		Example: "  lab apply -f pods.yaml --wait 30s\n  cat pods.yaml | lab apply -f -",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return change(cmd, *dir, files, wait, (*lab.Lab).ApplyFiles)
		},
	}
	addFileFlags(cmd, &files, &wait, "wait until all pods run, at most this long")
	return cmd
}

func deleteCommand(dir *string) *cobra.Command {
	var files []string
	var wait time.Duration
	var ignoreNotFound bool
	cmd := &cobra.Command{
		Use:   "delete -f FILE",
		Short: "Delete the objects that manifests name",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return change(cmd, *dir, files, wait, func(l *lab.Lab, files ...lab.File) ([]manifest.Change, error) {
				changes, err := l.DeleteFiles(files...)
				for _, c := range changes {
					if c.What == "not found" && !ignoreNotFound && err == nil {
						err = fmt.Errorf("%s was not found (ignored with --ignore-not-found)", c.Ref)
					}
				}
				return changes, err
			})
		},
	}
	addFileFlags(cmd, &files, &wait, "wait until the pods are gone, at most this long")
	cmd.Flags().BoolVar(&ignoreNotFound, "ignore-not-found", false, "ignore missing objects")
	return cmd
}

func addFileFlags(cmd *cobra.Command, files *[]string, wait *time.Duration, waitHelp string) {
	cmd.Flags().StringArrayVarP(files, "filename", "f", nil, "YAML or JSON file, - for standard input; may be repeated")
	cmd.Flags().DurationVar(wait, "wait", 0, waitHelp)
	if err := cmd.MarkFlagRequired("filename"); err != nil {
		panic(err) // the flag is defined above
	}
}

// change reads all files before it changes anything.
func change(cmd *cobra.Command, dir string, names []string, wait time.Duration,
	do func(*lab.Lab, ...lab.File) ([]manifest.Change, error)) error {
	l, err := lab.Open(dir)
	if err != nil {
		return err
	}
	var files []lab.File
	for _, name := range names {
		data, err := readFile(cmd, name)
		if err != nil {
			return err
		}
		files = append(files, lab.File{Name: name, Data: data})
	}
	changes, err := do(l, files...)
	for _, c := range changes {
		fmt.Fprintln(cmd.OutOrStdout(), c)
	}
	if err != nil || wait == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), wait)
	defer cancel()
	return l.WaitPods(ctx)
}

func readFile(cmd *cobra.Command, file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(cmd.InOrStdin())
	}
	return os.ReadFile(file)
}
