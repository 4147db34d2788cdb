package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fsnotify/fsnotify"

	"github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// CrashSteps are the steps of attaching the uplink at which AgentCrash can kill, or those of restoring it, in an uplink
// mode.
func CrashSteps(mode string, back bool) []string { return uplink.Steps(mode, back) }

func (l *Lab) crashSteps(back bool) []string { return CrashSteps(l.spec.Uplink, back) }

// AgentCrash kills the process that attaches or restores a node's uplink (SIGKILL) as soon as its journal records the
// start of step. A running agent is stopped first. For a step of an attach the uplink is restored and the agent
// started; for one of a restore an agent attaches it, and "fairlead-agent uplink restore" is
// killed. The journal is watched from outside: a step of less than a millisecond may be missed, and one without work
// does not occur. past is then the step that followed, else empty.
func (l *Lab) AgentCrash(ctx context.Context, node, step string) (past string, err error) {
	h, _, err := l.node(node)
	if err != nil {
		return "", err
	}
	back := slices.Contains(l.crashSteps(true), step)
	if !back && !slices.Contains(l.crashSteps(false), step) {
		return "", fmt.Errorf("%q is not a step of an attach (%s) or of a restore (%s)", step,
			strings.Join(l.crashSteps(false), ", "), strings.Join(l.crashSteps(true), ", "))
	}
	if l.spec.Mode != underlay.Bridge {
		return "", fmt.Errorf("the agents of this lab attach no uplink: lab up --mode %s creates one where they do", underlay.Bridge)
	}
	if err := l.beforeCrash(ctx, node, back); err != nil {
		return "", fmt.Errorf("getting %s to where %q can come: %w", node, step, err)
	}
	past, err = l.crash(ctx, h, step, back)
	if err != nil {
		return "", fmt.Errorf("killing at step %q on %s: %w", step, node, err)
	}
	return past, nil
}

// beforeCrash stops the agent, and leaves the uplink in the state where the steps begin.
func (l *Lab) beforeCrash(ctx context.Context, node string, back bool) error {
	if err := l.AgentStop(ctx, node); err != nil {
		return err
	}
	if !back {
		return l.restoreUplink(ctx, node)
	}
	if err := l.AgentStart(ctx, node); err != nil {
		return err
	}
	if err := l.WaitReady(ctx, node); err != nil {
		return err
	}
	return l.AgentStop(ctx, node)
}

func (l *Lab) restoreUplink(ctx context.Context, node string) error {
	h, _, err := l.node(node)
	if err != nil {
		return err
	}
	cmd := l.restoreCommand(ctx)
	return h.Do(func() error { return host.Run(cmd) })
}

func (l *Lab) restoreCommand(ctx context.Context) *exec.Cmd {
	return exec.CommandContext(ctx, filepath.Join(l.spec.BinDir, "fairlead-agent"), "uplink", "restore")
}

func (l *Lab) crash(ctx context.Context, h host.Host, step string, back bool) (past string, err error) {
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return "", err
	}
	defer watch.Close()
	if err := watch.Add(filepath.Dir(h.Private(uplink.DefaultJournal))); err != nil {
		return "", err
	}
	kill := func() error { return l.AgentKill(ctx, h.Name) }
	ended := make(chan error, 1)
	if back {
		cmd := l.restoreCommand(ctx)
		if err := h.Start(cmd); err != nil {
			return "", err
		}
		kill = cmd.Process.Kill
		go func() { ended <- cmd.Wait() }()
	} else {
		if err := l.AgentStart(ctx, h.Name); err != nil {
			return "", err
		}
		go func() { ended <- l.WaitReady(ctx, h.Name) }()
	}
	now, err := awaitStep(ctx, watch, h, l.crashSteps(back), step, ended)
	if killed := kill(); err == nil && !errors.Is(killed, os.ErrProcessDone) {
		err = killed
	}
	if back && err == nil {
		<-ended
	}
	if last := journalStep(h); last != "" && err == nil { // the process continued until the signal arrived
		now = last
	}
	if now == step {
		return "", err
	}
	return now, err
}

// awaitStep returns the first step in the journal that is step, or follows it.
func awaitStep(ctx context.Context, watch *fsnotify.Watcher, h host.Host, order []string, step string,
	ended <-chan error) (string, error) {
	for {
		select {
		case <-watch.Events:
		case err := <-watch.Errors:
			return "", err
		case err := <-ended:
			return "", fmt.Errorf("it ended, %v, and the journal never had this step", orWell(err))
		case <-ctx.Done():
			return "", ctx.Err()
		}
		if now := journalStep(h); slices.Index(order, now) >= slices.Index(order, step) {
			return now, nil
		}
	}
}

// journalStep is the step in the journal; empty where there is none.
func journalStep(h host.Host) string {
	var journal struct{ Step string }
	text, err := os.ReadFile(h.Private(uplink.DefaultJournal))
	if err != nil || json.Unmarshal(text, &journal) != nil {
		return ""
	}
	return journal.Step
}

func orWell(err error) any {
	if err == nil {
		return "well"
	}
	return err
}
