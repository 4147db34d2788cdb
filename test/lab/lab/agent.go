package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// Files of a node's agent, on the node. All of /run is the node's own.
const (
	agentPID  = "/run/lab/agent.pid"
	agentExit = "/run/lab/agent.exit"
	agentConf = "/etc/fairlead/agent.conf"
)

// keepExit starts a program, and writes its PID and then its exit code to files: the process that started it will have
// exited by then.
const keepExit = `pid=$1; code=$2; shift 2; rm -f "$pid" "$code"
"$@" & echo $! >"$pid.new"; mv "$pid.new" "$pid"; wait $!; c=$?; echo $c >"$code.new"; mv "$code.new" "$code"`

// AgentState is the state of a node's agent.
type AgentState struct {
	// PID is its process, 0 if it is not running.
	PID int `json:"pid"`
	// Ready is the result of /readyz; Reason is its answer, or why there is none.
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
	// Exit is the exit code of the last agent, 128 plus the signal if one killed it. It is nil while an agent runs and
	// before the first.
	Exit *int `json:"exit,omitempty"`
}

// String is a short description.
func (s AgentState) String() string {
	switch {
	case s.PID != 0 && s.Ready:
		return fmt.Sprintf("ready (pid %d)", s.PID)
	case s.PID != 0:
		return fmt.Sprintf("not ready (pid %d): %s", s.PID, s.Reason)
	case s.Exit != nil && *s.Exit > 128:
		return fmt.Sprintf("ended by signal %d", *s.Exit-128)
	case s.Exit != nil:
		return fmt.Sprintf("ended, exit code %d", *s.Exit)
	default:
		return "not started"
	}
}

// AgentStart starts a node's agent. It does not wait until the agent is ready; WaitReady does.
func (l *Lab) AgentStart(ctx context.Context, node string) error {
	h, _, err := l.node(node)
	if err != nil {
		return err
	}
	if pid := pidIn(h, agentPID); pid != 0 {
		return fmt.Errorf("the agent of %s is already running (pid %d)", node, pid)
	}
	log, err := os.OpenFile(l.agentLog(h), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("starting the agent of %s: %w", node, err)
	}
	defer log.Close()
	fmt.Fprintf(log, "--- lab: starting the agent of %s, %s\n", node, time.Now().Format(time.RFC3339))
	cmd := exec.Command("sh", "-c", keepExit, "sh", agentPID, agentExit,
		filepath.Join(l.spec.BinDir, "fairlead-agent"), "--config", agentConf)
	cmd.Env = append(host.Env(), "NODE_NAME="+node)
	if l.spec.ProductIntervals {
		cmd.Env = append(cmd.Env, api.IntervalsVariable+"=")
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := os.Remove(h.Private(agentPID)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("starting the agent of %s: %w", node, err)
	}
	if err := h.Start(cmd); err != nil {
		return fmt.Errorf("starting the agent of %s: %w", node, err)
	}
	go cmd.Wait() // reaps it if this process lives on
	for !exists(h.Private(agentPID)) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("starting the agent of %s: %w", node, ctx.Err())
		case <-time.After(2 * time.Millisecond):
		}
	}
	return nil
}

// AgentStop stops a node's agent with SIGTERM and waits until it has exited.
func (l *Lab) AgentStop(ctx context.Context, node string) error {
	return l.agentSignal(ctx, node, unix.SIGTERM)
}

// AgentKill kills it with SIGKILL.
func (l *Lab) AgentKill(ctx context.Context, node string) error {
	return l.agentSignal(ctx, node, unix.SIGKILL)
}

func (l *Lab) agentSignal(ctx context.Context, node string, sig unix.Signal) error {
	h, _, err := l.node(node)
	if err != nil {
		return err
	}
	pid := pidIn(h, agentPID)
	if err := host.End(ctx, pid, sig); err != nil {
		return fmt.Errorf("ending the agent of %s: %w", node, err)
	}
	if pid != 0 {
		awaitExit(h)
	}
	return nil
}

// awaitExit waits for the exit code of an agent that is gone. The shell of keepExit writes it at once, unless it was
// killed too.
func awaitExit(h host.Host) {
	deadline := time.Now().Add(10 * time.Second)
	for !exists(h.Private(agentExit)) && time.Now().Before(deadline) {
		time.Sleep(2 * time.Millisecond)
	}
}

// AgentLog is the path of the log of all agents of the node so far.
func (l *Lab) AgentLog(node string) (string, error) {
	h, _, err := l.node(node)
	return l.agentLog(h), err
}

func (l *Lab) agentLog(h host.Host) string { return filepath.Join(h.Dir, "agent.log") }

// AgentState reads the state of a node's agent.
func (l *Lab) AgentState(ctx context.Context, node string) (AgentState, error) {
	h, _, err := l.node(node)
	if err != nil {
		return AgentState{}, err
	}
	s := AgentState{PID: pidIn(h, agentPID)}
	if s.PID == 0 {
		if exists(h.Private(agentPID)) {
			awaitExit(h)
		}
		if data, err := os.ReadFile(h.Private(agentExit)); err == nil {
			if code, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil {
				s.Exit = &code
			}
		}
		return s, nil
	}
	s.Reason, err = readyz(ctx, h, l.spec.APIPort)
	s.Ready = err == nil
	if err != nil {
		s.Reason = err.Error()
	}
	return s, nil
}

// WaitReady waits until the node's agent is ready. It returns early if the agent has exited.
func (l *Lab) WaitReady(ctx context.Context, node string) error {
	var last AgentState
	for {
		s, err := l.AgentState(ctx, node)
		if ctx.Err() != nil && !s.Ready && s.PID != 0 && last.PID == s.PID {
			s = last // its last answer, instead of the error of the interrupted request
		}
		last = s
		if err != nil || s.Ready {
			return err
		}
		if s.PID == 0 {
			return fmt.Errorf("the agent of %s: %s", node, s)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the agent of %s is %s", node, s)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// readyz requests /readyz on the node, where the agent listens on 127.0.0.1.
func readyz(ctx context.Context, h host.Host, port int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // can take seconds on a busy machine
	defer cancel()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = h.Do(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
				return err
			})
			return conn, err
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/readyz", port), nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", errors.Unwrap(err) // without the URL
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(body))
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s", text)
	}
	return text, nil
}

// pidIn reads a PID file of the host; 0 means that no such process of the host runs.
func pidIn(h host.Host, file string) int {
	data, err := os.ReadFile(h.Private(file))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || !h.Runs(pid) {
		return 0
	}
	return pid
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
