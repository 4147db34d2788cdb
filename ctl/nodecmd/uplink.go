package nodecmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/fairlead-cni/fairlead/agent/rundir"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/config"
	"github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/datapath/uplink/preflight"
	"github.com/fairlead-cni/fairlead/internal/cli"
)

// uplinkFlags are the flags of all subcommands of "uplink".
type uplinkFlags struct {
	config       *string
	journal, nic string
	json         bool
}

// Uplink is "uplink" with its subcommands; configFile is the flag --config.
func Uplink(configFile *string) *cobra.Command {
	f := uplinkFlags{config: configFile}
	c := &cobra.Command{
		Use:   "uplink",
		Short: "Shows, attaches and restores the node's NIC",
		Long: `With enableBridgingMode: true the agent attaches the node's NIC for bridged pods. These
commands attach and restore it manually.

The previous state of the NIC is in the journal. See docs/uplink.md.

Exit codes: 0 done, 1 failed, 2 invalid flags or config file, 3 rejected by preflight,
4 attach failed and the NIC is restored.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return cli.Usage(errors.New("missing command: status, attach, restore, yield or preflight"))
		},
	}
	c.PersistentFlags().StringVar(&f.journal, "journal", uplink.DefaultJournal, "file of the uplink's journal")
	c.AddCommand(f.status(), f.attach(), f.restore(), f.yield(), f.preflight())
	return c
}

func (f *uplinkFlags) sub(name, short, long string, run func(ctx context.Context, out io.Writer) error) *cobra.Command {
	return &cobra.Command{Use: name, Short: short, Long: long, Args: cli.FlagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errors.New("this needs root")
			}
			return run(c.Context(), c.OutOrStdout())
		}}
}

func (f *uplinkFlags) status() *cobra.Command {
	c := f.sub("status", "Shows whether the NIC is attached, and what is missing",
		`Shows the journal, the state found on the node, and the next step.`, f.runStatus)
	c.Flags().BoolVar(&f.json, "json", false, "print JSON")
	return c
}

func (f *uplinkFlags) runStatus(ctx context.Context, out io.Writer) error {
	s, err := Status(ctx, f.journal, klog.Background())
	if err != nil {
		return err
	}
	if f.json {
		return printJSON(out, s)
	}
	_, err = fmt.Fprint(out, s)
	return err
}

func (f *uplinkFlags) attach() *cobra.Command {
	c := f.sub("attach", "Attaches the NIC for bridged pods",
		`Attaches the NIC in the mode of the config, or resumes an interrupted attach. If the default
gateway does not answer within uplink.rollbackAfter (30 seconds), the attach is rolled back.

A running agent notices it. If its config does not enable bridging, its next start restores the NIC.`,
		func(ctx context.Context, _ io.Writer) error {
			cfg, err := f.load()
			if err != nil {
				return err
			}
			u, p, err := Open(cfg, f.journal, f.nic, klog.Background())
			if err != nil {
				return err
			}
			return u.Attach(ctx, p)
		})
	f.addNIC(c)
	return c
}

func (f *uplinkFlags) restore() *cobra.Command {
	return f.sub("restore", "Detaches the NIC and restores its previous state",
		`Detaches the NIC from Open vSwitch and restores everything that the journal has recorded. It
needs no config, no API, no agent and no running Open vSwitch. It may be repeated.

A running agent does not attach it again; bridged pods have no network until the agent is restarted.`,
		func(ctx context.Context, out io.Writer) error {
			j, unwritable, err := Restore(ctx, f.journal, klog.Background())
			switch {
			case err != nil:
				return err
			case j == nil:
				fmt.Fprintf(out, "nothing was ever attached (%s does not exist)\n", f.journal)
			default:
				fmt.Fprintf(out, "%s is detached\n", j.NIC.Name)
				if unwritable != nil {
					fmt.Fprintf(out, "this is recorded in memory only, until the next boot: %s\n", unwritable)
				}
			}
			return nil
		})
}

func (f *uplinkFlags) yield() *cobra.Command {
	return f.sub("yield", "Returns the NIC to the host while Open vSwitch is replaced",
		`Run it before ovs-vswitchd is stopped, and once more afterwards, as the container fairlead-ovs does:
in mode bridge the host's packets go through ovs-vswitchd. The NIC is restored, and an agent attaches
it again as soon as another ovs-vswitchd runs.

On the kernel datapath it does nothing while an agent runs: the kernel keeps forwarding with the
flows it has, and an agent that finds ovs-vswitchd dead for some seconds returns the NIC itself.`,
		func(ctx context.Context, out io.Writer) error {
			u, err := uplink.Open(f.journal, klog.Background())
			if err != nil {
				return err
			}
			if j := u.Journal(); j != nil && j.Bridge.Datapath != api.DatapathNetdev && rundir.Locked() {
				fmt.Fprintln(out, "nothing to do: an agent runs, and no NIC is on the userspace datapath")
				return nil
			}
			yielded, err := u.Yield(ctx, uplink.VswitchdEnds)
			switch {
			case err != nil:
				return err
			case yielded:
				fmt.Fprintf(out, "%s is returned to the host until another ovs-vswitchd runs\n", u.Journal().NIC.Name)
			default:
				fmt.Fprintln(out, "nothing to do: no NIC is attached in mode bridge")
			}
			return nil
		})
}

func (f *uplinkFlags) preflight() *cobra.Command {
	c := f.sub("preflight", "Shows what attach would do, or why it is not possible",
		`Checks whether the NIC can be attached safely, and changes nothing. The NIC is that of --nic, which may
be a pattern such as 'en*', else the one that transportInterface in the config file names, else the one
that is attached, else the one that the agent, which must be running, has found: by a pattern in
transportInterface, by transportInterfaceCIDRs or by the Node's address. Exit code 3: it cannot be attached.`,
		func(ctx context.Context, out io.Writer) error {
			cfg, err := f.load()
			if err != nil {
				return err
			}
			r, err := Preflight(ctx, cfg, f.journal, f.nic, klog.Background())
			if err != nil {
				return err
			}
			if f.json {
				err = printJSON(out, r)
			} else {
				_, err = fmt.Fprint(out, r)
			}
			if err == nil && len(r.Refused) > 0 {
				return &preflight.RefusedError{Report: r}
			}
			return err
		})
	f.addNIC(c)
	c.Flags().BoolVar(&f.json, "json", false, "print JSON")
	return c
}

func (f *uplinkFlags) addNIC(c *cobra.Command) {
	c.Flags().StringVar(&f.nic, "nic", "", "the NIC (default: transportInterface of the config file)")
}

func (f *uplinkFlags) load() (api.AgentConfig, error) {
	cfg, _, err := config.Load(*f.config)
	if err != nil {
		return cfg, cli.Usage(err)
	}
	return cfg, nil
}

func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
