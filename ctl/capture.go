package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fairlead-cni/fairlead/ctl/capture"
	"github.com/fairlead-cni/fairlead/ctl/inforce"
	packets "github.com/fairlead-cni/fairlead/datapath/capture"
	"github.com/fairlead-cni/fairlead/internal/cli"
)

// captureFlags are those of "capture".
type captureFlags struct {
	conn *connection
	node *localNode
	out  output

	file, to, size, onNode string
	quiet, untilInputEnds  bool
	limits                 capture.Limits
}

func captureCommand(conn *connection, node *localNode) *cobra.Command {
	f := captureFlags{conn: conn, node: node}
	c := &cobra.Command{
		Use:   "capture [NAMESPACE/]POD [--to [NAMESPACE/]POD|ADDRESS[,ADDRESS]] -w FILE",
		Short: "Captures a pod's packets on the nodes of their path, in one pcapng file",
		Long: `capture records the packets of a pod, or with --to those between it and another pod or an address, in one
pcapng file with named interfaces, for Wireshark. On each pod's node it captures from the host end of the pod's
interface, the gateway, the kernel's tunnel device (Open vSwitch's userspace datapath has none), the transport
interface, and the NIC if that is a different one. It only reads: nothing on the nodes is changed.

What is captured, as the file states for each interface:
  at the pods           all that the pod sends and receives; with --to only what passes between the two ends
  elsewhere             packets with an address of the pod; with --to packets between addresses of the two ends
  transport interface   the same, also inside tunnel packets. Not: packets to the outside, which have the node's
                        address there (capture them at the gateway), and later fragments of tunnel packets
With --to it also captures ARP, neighbour discovery and ICMP errors of either end. A pod that connects to a Service
sends to its ClusterIP: without --to that is captured, with --to it is not. Packets that Open vSwitch drops are
captured where they enter it, and nowhere else; "policy trace" and "trace" show in which table it drops them.

It ends after --duration, at --packets or --size, or with Ctrl-C, and the file is complete in each case. Packets of
two nodes are ordered by the nodes' clocks.

On the nodes it runs fairleadctl in the agents' pods, as "kubectl exec" does, with your rights: it needs get on pods,
and in kube-system list on pods and create on pods/exec. --on-node names another method. --node-local captures on this
node only, without the Kubernetes API; it needs root, and a pod in --to must be on this node: otherwise give addresses.
Exit codes: 0, or 1 if anything was not captured that should have been.`,
		Example: `  fairleadctl capture shop/web-0 --to shop/db-0 -w web-db.pcapng
  fairleadctl capture shop/web-0 --to shop/db-0 -w - | wireshark -k -i -
  fairleadctl capture web-0 --to 203.0.113.1 --duration 2m -w out.pcapng
  fairleadctl capture web-0 -w web.pcapng --on-node 'ssh root@{node} fairleadctl'
  sudo fairleadctl capture web-0 --to 10.77.2.2 --node-local -w web.pcapng`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage(errors.New("want a pod: capture shop/web-0 -w web.pcapng"))
			}
			return f.check()
		},
		RunE: func(c *cobra.Command, args []string) error { return f.run(c, inforce.Name(args[0])) },
	}
	f.add(c)
	return c
}

func (f *captureFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVarP(&f.file, "write", "w", "", "the file; - is standard output")
	flags.StringVar(&f.to, "to", "", "the other end: a pod, or one address of each family")
	flags.DurationVar(&f.limits.Duration, "duration", 30*time.Second, "end after this time, at most "+capture.MaxDuration.String())
	flags.IntVar(&f.limits.Packets, "packets", 100_000, "end after this many packets")
	flags.StringVar(&f.size, "size", "100Mi", "end when the packets take this many bytes")
	flags.IntVar(&f.limits.SnapLen, "snaplen", packets.MaxSnapLen, "keep this many bytes of each packet")
	flags.StringVar(&f.onNode, "on-node", "", "command that runs fairleadctl on {node}, instead of in the agents' pods")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "do not report progress")
	flags.BoolVar(&f.untilInputEnds, "until-input-ends", false, "end with standard input as well")
	_ = flags.MarkHidden("until-input-ends") // for the capture on another node; the flag exists, so no error
	f.out.add(c)
	f.node.addOnly(c)
}

// check completes the limits.
func (f *captureFlags) check() error {
	size, err := resource.ParseQuantity(f.size)
	f.limits.Bytes = size.Value()
	switch {
	case f.file == "":
		return cli.Usage(errors.New("want a file: -w web.pcapng, or -w - for standard output"))
	case err != nil:
		return cli.Usage(fmt.Errorf("--size %q: want bytes, such as 100Mi", f.size))
	case f.node.only && f.onNode != "":
		return cli.Usage(errors.New("--node-local runs nothing on other nodes: --on-node has no effect"))
	}
	if err := f.limits.Check(f.untilInputEnds); err != nil {
		return cli.Usage(err)
	}
	return nil
}

func (f *captureFlags) run(c *cobra.Command, pod string) error {
	ends, err := capture.ParseEnds(pod, f.to)
	if err != nil {
		return cli.Usage(err)
	}
	if f.file == "-" && isTerminal(c.OutOrStdout()) {
		return cli.Usage(errors.New("-w - writes packets to standard output, which is a terminal: pipe it into wireshark -k -i -"))
	}
	sources, problems, err := f.open(c, ends)
	if err != nil {
		return err
	}
	defer func() {
		for _, s := range sources {
			s.Close()
		}
	}()
	said := c.ErrOrStderr()
	for _, p := range problems {
		fmt.Fprintf(said, "not captured: %s\n", p)
	}
	summary, err := f.record(c, sources)
	if err != nil {
		return err
	}
	for _, p := range summary.Problems {
		fmt.Fprintf(said, "not captured: %s\n", p)
	}
	summary.Problems = append(problems, summary.Problems...)
	to := c.OutOrStdout()
	if f.file == "-" {
		to = said
	}
	if !f.quiet || f.file != "-" {
		err = f.out.write(to, summary, summary.Write)
	}
	if err == nil && len(summary.Problems) > 0 {
		return cli.ExitCode(cli.ExitError)
	}
	return err
}

// open starts capturing. Problems are what is left out.
func (f *captureFlags) open(c *cobra.Command, ends capture.Ends) (
	sources []capture.Source, problems []string, err error) {
	ctx, cancel := f.conn.within(c)
	defer cancel()
	if f.node.only {
		if os.Geteuid() != 0 {
			return nil, nil, errors.New("--node-local needs root: sudo")
		}
		cfg, err := f.node.load()
		if err != nil {
			return nil, nil, err
		}
		return capture.Node{Config: cfg, Journal: f.node.journal}.Open(ctx, ends, f.limits.SnapLen)
	}
	client, err := f.conn.client()
	if err != nil {
		return nil, nil, err
	}
	jobs, err := capture.Plan(ctx, client, ends)
	if err != nil {
		return nil, nil, err
	}
	var runner capture.Runner = capture.AgentPods{Client: client}
	if f.onNode != "" {
		runner = capture.Command(f.onNode)
	}
	sources, err = capture.StartAll(c.Context(), runner, jobs, f.limits, f.conn.timeout)
	return sources, nil, err
}

// record captures into the file.
func (f *captureFlags) record(c *cobra.Command, sources []capture.Source) (summary *capture.Summary, err error) {
	ctx, stop := context.WithCancelCause(c.Context())
	defer stop(nil)
	if f.untilInputEnds {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // end of file or an error: both end it
			stop(capture.ErrInputEnded)
		}()
	}
	to := c.OutOrStdout()
	if f.file != "-" {
		// Only the user may read the packets. A FIFO without a reader is an error: opening it does not wait for one.
		file, err := os.OpenFile(f.file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, err
		}
		defer func() { err = cmp.Or(err, file.Close()) }()
		to = file
	}
	how := capture.Recording{Limits: f.limits, Comment: strings.Join(os.Args, " ")}
	if !f.quiet {
		said := c.ErrOrStderr()
		fmt.Fprintf(said, "capturing for %s, up to %d packets or %s bytes; Ctrl-C ends it\n", f.limits.Duration, f.limits.Packets, f.size)
		how.Progress = capture.ShowProgress(said, isTerminal(said))
	}
	summary, err = capture.Record(ctx, to, sources, how)
	if !f.quiet && isTerminal(c.ErrOrStderr()) {
		fmt.Fprintln(c.ErrOrStderr()) // after the progress line
	}
	if summary != nil && f.file != "-" {
		summary.File = f.file
	}
	return summary, err
}
