package ctl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/cniserver/conflist"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/internal/cli"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/migrate/antrea"
)

// importAntrea are the flags of "ipam import-antrea".
type importAntrea struct {
	conn        *connection
	out         output
	dryRun, yes bool
}

// imported is the output of "ipam import-antrea".
type imported struct {
	Entries []antrea.Result        `json:"entries"`
	Counts  map[antrea.Outcome]int `json:"counts"`
}

func importAntreaCommand(conn *connection) *cobra.Command {
	i := &importAntrea{conn: conn}
	c := &cobra.Command{
		Use:   "import-antrea",
		Short: "Imports the allocations recorded in Antrea's pools",
		Long: `import-antrea reads status.ipAddresses of the IPPools, which Antrea has written, and
creates an IPAllocation for each entry that it can verify: the Pod exists and has the
address, or it is reserved for a pod of a StatefulSet that exists. Fairlead then does not
allocate these addresses to other pods. Entries that cannot be verified are skipped, with
the reason; Antrea's data is not changed.

It prints what it would do and asks for confirmation, unless --yes is given. It may be
interrupted and run again at any time: existing allocations stay. Run it once Antrea no
longer allocates addresses, and before Fairlead's agents start.
See docs/migrate-from-antrea.md.

Exit codes: 0 all entries are imported, 3 some are skipped.`,
		Example: `  fairleadctl ipam import-antrea --dry-run
  fairleadctl ipam import-antrea --yes`,
		Args: cli.FlagsOnly,
		RunE: func(c *cobra.Command, _ []string) error { return i.run(c) },
	}
	i.out.add(c)
	c.Flags().BoolVar(&i.dryRun, "dry-run", false, "print what would be done, and do nothing")
	c.Flags().BoolVar(&i.yes, "yes", false, "do not ask for confirmation")
	return c
}

func (i *importAntrea) run(c *cobra.Command) error {
	client, err := i.conn.client()
	if err != nil {
		return err
	}
	ctx, cancel := i.conn.within(c)
	defer cancel()
	results, err := antrea.Plan(ctx, client, conflist.NetworkName)
	if err != nil {
		return err
	}
	if count(results)[antrea.New] > 0 && !i.dryRun {
		if err := i.confirm(c, results); err != nil {
			return err
		}
		if err := i.doAll(c, client, results); err != nil {
			return err
		}
	}
	done := imported{Entries: results, Counts: count(results)}
	if err := i.out.write(c.OutOrStdout(), done, done.write); err != nil {
		return err
	}
	if done.Counts[antrea.Refused] > 0 {
		return cli.ExitCode(exitWarning)
	}
	return nil
}

// confirm shows the plan and returns nil if the user agrees.
func (i *importAntrea) confirm(c *cobra.Command, results []antrea.Result) error {
	if i.yes {
		return nil
	}
	if isTerminal(c.InOrStdin()) {
		imported{Entries: results, Counts: count(results)}.write(report.New(c.ErrOrStderr(), coloured(c.ErrOrStderr())))
	}
	return confirm(c, "use --dry-run to see what would be done, --yes to do it", "Import these?", "nothing was imported")
}

// progressEvery is the number of addresses after which progress is printed.
const progressEvery = 500

// doAll imports all new allocations. --timeout bounds each of them.
func (i *importAntrea) doAll(c *cobra.Command, client *kube.Client, results []antrea.Result) error {
	done := 0
	for n := range results {
		if results[n].Outcome != antrea.New {
			continue
		}
		ctx, cancel := context.WithTimeout(c.Context(), i.conn.timeout)
		err := results[n].Import(ctx, client)
		cancel()
		if err != nil {
			return fmt.Errorf("after %d addresses: %w. Run the command again: it resumes from here", done, err)
		}
		if done++; done%progressEvery == 0 {
			fmt.Fprintf(c.ErrOrStderr(), "imported %d addresses\n", done)
		}
	}
	return nil
}

func count(results []antrea.Result) map[antrea.Outcome]int {
	out := map[antrea.Outcome]int{}
	for _, r := range results {
		out[r.Outcome]++
	}
	return out
}

func (d imported) write(p *report.Printer) {
	if len(d.Entries) == 0 {
		p.Line("No IPPool has status.ipAddresses: Antrea allocated no address, or its data is gone.")
		return
	}
	rows := [][]string{{"ADDRESS", "POOL", "OWNER ACCORDING TO ANTREA", "OUTCOME"}}
	for _, r := range d.Entries {
		if r.Outcome == antrea.New {
			rows = append(rows, []string{r.Address, r.Pool, r.Owner, string(r.Outcome)})
		}
	}
	if len(rows) > 1 {
		p.Table(rows...)
	}
	for _, r := range d.Entries {
		if r.Outcome == antrea.Refused {
			p.Text("skipped: ", fmt.Sprintf("%s of IPPool %s, %s: %s", r.Address, r.Pool, r.Owner, r.Why))
		}
	}
	p.Line("%d can be imported, %d were imported now, %d existed, %d are skipped.", d.Counts[antrea.New],
		d.Counts[antrea.Imported], d.Counts[antrea.Exists], d.Counts[antrea.Refused])
}
