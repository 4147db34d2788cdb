package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/cniserver/conflist"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/migrate/antrea"
)

// importAntrea are the flags of "ipam import-antrea".
type importAntrea struct {
	conn        *connection
	out         output
	dryRun, yes bool
}

// imported is what "ipam import-antrea" prints.
type imported struct {
	Entries []antrea.Result         `json:"entries"`
	Counts  map[antrea.Outcome]int  `json:"counts"`
	listed  map[antrea.Outcome]bool // outcomes that text has line by line
}

func importAntreaCommand(conn *connection) *cobra.Command {
	i := &importAntrea{conn: conn}
	c := &cobra.Command{
		Use:   "import-antrea",
		Short: "Takes over the addresses that Antrea's pools say pods have",
		Long: `import-antrea reads status.ipAddresses of the IPPools, which Antrea has written, and
makes an IPAllocation of each entry that it can prove: the Pod is there and has the
address, or the StatefulSet is there for whose pod it is kept. Fairlead then gives
these addresses to nobody else. Entries that can't be proved are left out, with the
reason; Antrea's data stays as it is.

It shows what it would do, and asks before it does it, or --yes says so. It may be
stopped and run again at any time: what is there already stays. Run it when Antrea
gives no more addresses, and before Fairlead's agents start.
See docs/migrate-from-antrea.md.

Exit codes: 0 all entries are taken over, 3 some are left out.`,
		Example: `  fairleadctl ipam import-antrea --dry-run
  fairleadctl ipam import-antrea --yes`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return i.run(c) },
	}
	i.out.add(c)
	c.Flags().BoolVar(&i.dryRun, "dry-run", false, "show what would be done, and do nothing")
	c.Flags().BoolVar(&i.yes, "yes", false, "do not ask")
	return c
}

func (i *importAntrea) run(c *cobra.Command) error {
	if err := i.out.check(); err != nil {
		return err
	}
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
		if err := i.agreed(c, results); err != nil {
			return err
		}
		if err := i.doAll(c, client, results); err != nil {
			return err
		}
	}
	done := imported{Entries: results, Counts: count(results),
		listed: map[antrea.Outcome]bool{antrea.New: true, antrea.Refused: true}}
	if err := i.out.write(c.OutOrStdout(), done, done.write); err != nil {
		return err
	}
	if done.Counts[antrea.Refused] > 0 {
		return found{exitWarning}
	}
	return nil
}

// agreed shows the plan and returns nil if it may be carried out.
func (i *importAntrea) agreed(c *cobra.Command, results []antrea.Result) error {
	if i.yes {
		return nil
	}
	if !isTerminal(c.InOrStdin()) {
		return usageError{errors.New("there is no terminal to ask on: --dry-run shows what would be done, --yes does it")}
	}
	p := report.New(c.ErrOrStderr(), coloured(c.ErrOrStderr()))
	plan := imported{Entries: results, Counts: count(results),
		listed: map[antrea.Outcome]bool{antrea.New: true, antrea.Refused: true}}
	plan.write(p)
	p.Line("Take these over? Type yes:")
	answer, err := ask(c.Context(), c)
	if err == nil && answer != "yes" {
		err = errors.New("nothing was taken over")
	}
	return err
}

// progressEvery is after how many addresses it is told how far it is.
const progressEvery = 500

// doAll takes over all that is new. --timeout bounds each of them.
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
			return fmt.Errorf("after %d addresses: %w. Run it again: it goes on from here", done, err)
		}
		if done++; done%progressEvery == 0 {
			fmt.Fprintf(c.ErrOrStderr(), "%d addresses are taken over\n", done)
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
		p.Line("No IPPool has status.ipAddresses: Antrea gave no address, or its data is gone.")
		return
	}
	rows := [][]string{{"ADDRESS", "POOL", "ANTREA SAYS IT IS OF", "OUTCOME"}}
	for _, r := range d.Entries {
		if d.listed[r.Outcome] && r.Outcome != antrea.Refused {
			rows = append(rows, []string{r.Address, r.Pool, r.Owner, string(r.Outcome)})
		}
	}
	if len(rows) > 1 {
		p.Table(rows...)
	}
	for _, r := range d.Entries {
		if r.Outcome == antrea.Refused {
			p.Text("left out: ", fmt.Sprintf("%s of IPPool %s, %s: %s", r.Address, r.Pool, r.Owner, r.Why))
		}
	}
	p.Line("%d can be taken over, %d were just now, %d were there, %d are left out.", d.Counts[antrea.New],
		d.Counts[antrea.Imported], d.Counts[antrea.There], d.Counts[antrea.Refused])
}
