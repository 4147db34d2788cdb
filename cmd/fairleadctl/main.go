// Command fairleadctl examines a cluster that Fairlead serves, for people. This
// file has the root command and the exit codes; doctor.go and plan.go have a
// command each.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// version is set by the linker.
var version = "dev"

// Exit codes.
const (
	exitError   = 1
	exitUsage   = 2
	exitWarning = 3
	exitFailing = 4
)

// found is what a command has found and told: it says how bad that is and no more.
type found struct{ code int }

func (f found) Error() string { return fmt.Sprintf("exit code %d", f.code) }

// usageError is a mistake in the arguments.
type usageError struct{ error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := command().ExecuteContext(ctx)
	if err == nil {
		return
	}
	told, usage := found{}, usageError{}
	switch {
	case errors.As(err, &told):
		os.Exit(told.code)
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "fairleadctl: %v\n", err)
		os.Exit(exitUsage)
	}
	fmt.Fprintf(os.Stderr, "fairleadctl: %v\n", err)
	os.Exit(exitError)
}

func command() *cobra.Command {
	c := &cobra.Command{
		Use:   "fairleadctl",
		Short: "Examines a cluster that Fairlead serves",
		Long: `fairleadctl examines a cluster that Fairlead serves. It changes nothing.

Exit codes: 0 nothing is wrong, 1 it could not be found out, 2 a mistake in the
arguments, 3 warnings: all nodes serve pods, 4 a node does not serve pods, or a
plan does not hold.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	c.AddCommand(doctorCommand(), planCommand())
	return c
}

// noArgs is an Args of cobra.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%q: %s takes flags only", args[0], c.CommandPath())}
	}
	return nil
}

// output is the flag -o.
type output struct{ format string }

func (o *output) add(c *cobra.Command) {
	c.Flags().StringVarP(&o.format, "output", "o", "text", "text or json")
}

func (o *output) write(w io.Writer, value any, text func(io.Writer) error) error {
	switch o.format {
	case "text":
		return text(w)
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(value)
	}
	return usageError{fmt.Errorf("-o %s: want text or json", o.format)}
}

// connection are the flags that say which cluster is meant.
type connection struct{ kubeconfig, context string }

func (f *connection) add(c *cobra.Command) {
	c.PersistentFlags().StringVar(&f.kubeconfig, "kubeconfig", "",
		"kubeconfig file (default: the environment variable KUBECONFIG, else ~/.kube/config, else the pod's ServiceAccount)")
	c.PersistentFlags().StringVar(&f.context, "context", "", "context of the kubeconfig (default: its current one)")
}

func (f *connection) client() (kubernetes.Interface, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: f.context}).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("which cluster? There is no kubeconfig: give --kubeconfig or set KUBECONFIG " +
			"(kubeadm writes one to /etc/kubernetes/admin.conf on a control-plane node)")
	}
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	config.UserAgent = "fairleadctl/" + version
	config.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	return client, nil
}
