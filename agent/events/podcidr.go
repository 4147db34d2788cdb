// Package events writes Warning Events where users look for faults: on the own Node, on Pods, and on policies that are
// not enforced. This takes calls to the API server, which may hang, so it is done in parallel to the loop. Fairlead's
// Events have its component name (package kube).
package events

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/podcidr"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// adviseTimeout bounds the diagnosis that an agent makes before it exits.
const adviseTimeout = 10 * time.Second

// Reasons of the Events on the own Node.
const (
	ReasonPodCIDR = "PodCIDRUnusable"
	ReasonOutside = "PodCIDRChanged"
	ReasonTunnel  = "TunnelUnusable"
)

// Advisor finds out from the Kubernetes API why the node's podCIDR can't be used, and what would fix it, and writes the
// Events on the Node. This takes calls that may hang, so it is done in parallel to the loop. If inputs come from a
// directory, there is no API to query, and the loop's own message is used.
type Advisor struct {
	kube *kube.Client // nil: a directory
	node string
	// every is how old a diagnosis may get while its cause lasts, and how long a failed write of an Event waits for its
	// retry.
	every time.Duration
	log   logr.Logger
	// Changed is notified when there is another answer.
	Changed signal.Signal
	wake    signal.Signal

	mu       sync.Mutex
	question *desired.PodCIDRError // nil: none
	snapshot *inputs.Snapshot
	answer   string            // to question; empty: not known yet
	loud     bool              // the answer is reported by an Event
	events   map[string]string // reason -> message
}

// NewAdvisor returns an Advisor of the named node. client is nil where inputs come from a directory.
func NewAdvisor(client *kube.Client, node string, every api.AgentIntervals, log logr.Logger) *Advisor {
	return &Advisor{kube: client, every: every.Advice, node: node, log: log, Changed: signal.New(), wake: signal.New(),
		events: map[string]string{}}
}

// Explain returns err with its cause and remedy if they are known, and otherwise starts a diagnosis. It does not wait.
// err is nil when the fault is over.
func (a *Advisor) Explain(err error, s *inputs.Snapshot) error {
	q := (*desired.PodCIDRError)(nil)
	if a.kube == nil || err != nil && !errors.As(err, &q) {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.snapshot = s
	if q == nil || a.question == nil || *q != *a.question {
		a.question, a.answer = q, ""
		if q != nil {
			a.wake.Notify()
		} else {
			delete(a.events, ReasonPodCIDR)
		}
	}
	if q != nil && a.answer != "" {
		return &desired.PodCIDRError{Reason: a.answer}
	}
	return err
}

// EnableEvents makes answers be reported as Events from now on. A node that waits for its first podCIDR is not worth
// one.
func (a *Advisor) EnableEvents() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kube != nil && !a.loud {
		a.loud = true
		a.wake.Notify()
	}
}

// Report requests an Event on the Node, which is written once; an empty message withdraws it.
func (a *Advisor) Report(reason, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.kube == nil || a.events[reason] == message:
	case message == "":
		delete(a.events, reason)
	default:
		a.events[reason] = message
		a.wake.Notify()
	}
}

// Run answers and writes until ctx ends.
func (a *Advisor) Run(ctx context.Context) {
	written := map[string]event{}
	signal.Loop(ctx, a.every, a.wake, func(ctx context.Context) {
		a.refresh(ctx)
		a.write(ctx, written)
	})
}

// refresh answers the question, if there is one.
func (a *Advisor) refresh(ctx context.Context) {
	a.mu.Lock()
	q, s := a.question, a.snapshot
	a.mu.Unlock()
	if q == nil {
		return
	}
	answer := a.diagnose(ctx, q, s)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.question != q || ctx.Err() != nil {
		return
	}
	if a.answer != answer {
		a.answer = answer
		a.Changed.Notify()
	}
	if a.loud {
		a.events[ReasonPodCIDR] = answer
	}
}

// diagnose returns the whole message, or the question's own if nothing more is found.
func (a *Advisor) diagnose(ctx context.Context, q *desired.PodCIDRError, s *inputs.Snapshot) string {
	if a.kube == nil || s == nil {
		return q.Reason
	}
	d := podcidr.Diagnose(a.node, s.Nodes, podcidr.Read(ctx, a.kube.Kubernetes, a.kube.Dynamic), time.Now())
	if d == nil || d.Severity < report.Failing && d.Kind != podcidr.JustCreated {
		return q.Reason
	}
	return d.Message()
}

// Diagnose makes a diagnosis at once, for an agent that will not wait any longer.
func (a *Advisor) Diagnose(ctx context.Context, err error, s *inputs.Snapshot) string {
	q := (*desired.PodCIDRError)(nil)
	if !errors.As(err, &q) {
		return err.Error()
	}
	if a.kube == nil {
		return q.Reason
	}
	a.mu.Lock()
	if a.question != nil {
		q = a.question // err may be an answer
	}
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, adviseTimeout)
	defer cancel()
	return a.diagnose(ctx, q, s)
}

// event is an Event's message and when it was written.
type event struct {
	message string
	at      time.Time
}

// write writes the Events that are not written yet, or that the API server is about to delete. A fault that is resolved
// may be reported again when it recurs.
func (a *Advisor) write(ctx context.Context, written map[string]event) {
	a.mu.Lock()
	wanted := maps.Clone(a.events)
	a.mu.Unlock()
	maps.DeleteFunc(written, func(reason string, _ event) bool { return wanted[reason] == "" })
	for reason, message := range wanted {
		w := written[reason]
		if (w.message != message || time.Since(w.at) > renewEvents) && a.Warn(ctx, reason, message) {
			written[reason] = event{message, time.Now()}
		}
	}
}

// Warn writes an Event on the Node now, and reports whether that worked. A failure is logged.
func (a *Advisor) Warn(ctx context.Context, reason, message string) bool {
	w := kube.Warning{About: kube.NodeReference(a.node), Reason: reason, Message: message}
	err := a.kube.Warn(ctx, a.node, w)
	if err != nil && ctx.Err() == nil {
		a.log.Error(err, "writing an Event on the Node")
	}
	return err == nil
}
