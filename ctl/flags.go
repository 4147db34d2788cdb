package ctl

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/config"
	"github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/internal/cli"
	"github.com/fairlead-cni/fairlead/kube"
)

// output is the flag -o: text, json or yaml.
type output string

func (o *output) add(c *cobra.Command) {
	*o = "text"
	c.Flags().VarP(o, "output", "o", "text, json or yaml")
}

// String, Set and Type implement pflag.Value.
func (o *output) String() string { return string(*o) }

// Set rejects other formats.
func (o *output) Set(format string) error {
	if !slices.Contains([]string{"text", "json", "yaml"}, format) {
		return errors.New("want text, json or yaml")
	}
	*o = output(format)
	return nil
}

// Type is shown in the help text.
func (o *output) Type() string { return "string" }

func (o output) write(w io.Writer, value any, text func(*report.Printer)) error {
	switch o {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(value)
	case "yaml":
		out, err := yaml.Marshal(value)
		if err == nil {
			_, err = w.Write(out)
		}
		return err
	}
	p := report.New(w, coloured(w))
	text(p)
	return p.Err()
}

// coloured reports whether to use colours: on a terminal, unless the user disables them (https://no-color.org).
func coloured(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(w)
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// connection are the flags that select the cluster.
type connection struct {
	version                     string // of this program
	kubeconfig, context, server string
	timeout                     time.Duration
	node                        *localNode
}

func (f *connection) add(c *cobra.Command) {
	c.PersistentFlags().StringVar(&f.kubeconfig, "kubeconfig", "",
		"kubeconfig file (default: the environment variable KUBECONFIG, else ~/.kube/config, else the agent's connection)")
	c.PersistentFlags().StringVar(&f.context, "context", "", "context of the kubeconfig (default: its current one)")
	c.PersistentFlags().StringVar(&f.server, "server", "", "host, host:port or URL of the API server; overrides the kubeconfig's")
	c.PersistentFlags().DurationVar(&f.timeout, "timeout", 30*time.Second, "timeout of the whole command")
}

// within bounds a command by --timeout.
func (f *connection) within(c *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.Context(), f.timeout)
}

// run connects, and bounds do by --timeout.
func (f *connection) run(c *cobra.Command, do func(context.Context, *kube.Client) error) error {
	client, err := f.client()
	if err != nil {
		return err
	}
	ctx, cancel := f.within(c)
	defer cancel()
	return do(ctx, client)
}

func (f *connection) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: f.context})
}

func (f *connection) client() (*kube.Client, error) {
	loader := f.loader()
	raw, err := loader.RawConfig()
	if err == nil && clientcmdapi.IsConfigEmpty(&raw) && os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		return f.asAgent()
	}
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, noKubeconfig()
	}
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if f.server != "" {
		config.Host = kube.WithScheme(f.server)
	}
	config.UserAgent = "fairleadctl/" + f.version
	config.WarningHandler = rest.NoWarnings{}
	config.QPS, config.Burst = 50, 100
	return kube.ForConfig(config)
}

// asAgent connects as the agent of this node does, by its config: with the pod's ServiceAccount or with a kubeconfig,
// and to kubeAPIServerOverride. Without kube-proxy the API server's address that kubelet gives to pods does not work.
func (f *connection) asAgent() (*kube.Client, error) {
	cfg, err := f.node.load()
	if err != nil {
		return nil, err
	}
	client, err := kube.NewFor("fairleadctl", cmp.Or(f.server, cfg.KubeAPIServerOverride), cfg.ClientConnection, f.version)
	if errors.Is(err, kube.ErrNoAccess) {
		return nil, noKubeconfig()
	}
	return client, err
}

func noKubeconfig() error {
	return errors.New("no kubeconfig found: use --kubeconfig or set KUBECONFIG " +
		"(kubeadm writes one to /etc/kubernetes/admin.conf on a control-plane node)")
}

// localNode are the flags about the node that this runs on.
type localNode struct {
	config, journal string
	only            bool
}

// defaultConfig is where the agent's config file is.
const defaultConfig = "/etc/fairlead/agent.conf"

func (n *localNode) add(c *cobra.Command) {
	c.PersistentFlags().StringVar(&n.config, "config", defaultConfig, "on a node: the agent's config file")
	c.PersistentFlags().StringVar(&n.journal, "journal", uplink.DefaultJournal, "on a node: the uplink's journal")
}

// addOnly adds the flag --node-local.
func (n *localNode) addOnly(c *cobra.Command) {
	c.Flags().BoolVar(&n.only, "node-local", false, "examine this node only, without the Kubernetes API")
}

// load reads the config. Without a file every key has its default.
func (n *localNode) load() (api.AgentConfig, error) {
	cfg, _, err := config.Load(n.config)
	if n.config == defaultConfig && errors.Is(err, fs.ErrNotExist) {
		cfg, _, err = config.Parse(nil, n.config)
	}
	if err != nil {
		return cfg, cli.Usage(err)
	}
	return cfg, nil
}

// here returns the agent's config; notHere says why this machine does not count as a node.
func (n *localNode) here() (cfg api.AgentConfig, notHere string, err error) {
	if cfg, err = n.load(); err != nil {
		return cfg, "", err
	}
	if !n.only && !nodestate.Here(cfg) {
		return cfg, "this machine is not a node of the cluster: run the command on a node", nil
	}
	return cfg, "", nil
}
