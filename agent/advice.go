package agent

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/diagnose/podcidr"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

const (
	// adviseEvery is how old a diagnosis may get while its cause lasts, and how
	// long an Event that could not be written waits.
	adviseEvery = 30 * time.Second
	// adviseTimeout bounds the diagnosis that an agent makes before it ends.
	adviseTimeout = 10 * time.Second
)

// Reasons of the Events on the own Node.
const (
	reasonPodCIDR = "PodCIDRUnusable"
	reasonStrays  = "PodCIDRChanged"
)

// adviser finds out from the Kubernetes API why the node's podCIDR can't be used,
// and what would mend it, and writes the Events on the Node. All of it takes calls
// that may hang, so it is done beside the loop. Where inputs come from a directory
// there is nobody to ask, and the loop's own sentence stands.
type adviser struct {
	kube    *kube.Client // nil: a directory
	node    string
	log     logr.Logger
	changed chan struct{} // there is another answer
	wake    chan struct{}

	mu       sync.Mutex
	question *PodCIDRError // nil: none
	snapshot *inputs.Snapshot
	answer   string            // to question; empty: not known yet
	loud     bool              // the answer is told by an Event
	events   map[string]string // reason -> message
}

func newAdviser(kube *kube.Client, node string, log logr.Logger) *adviser {
	return &adviser{kube: kube, node: node, log: log, changed: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		events: map[string]string{}}
}

// explain returns err with its cause and remedy if they are known, and has them
// looked for if not. It does not wait. err is nil when nothing is wrong any more.
func (a *adviser) explain(err error, s *inputs.Snapshot) error {
	q := (*PodCIDRError)(nil)
	if a.kube == nil || err != nil && !errors.As(err, &q) {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.snapshot = s
	if q == nil || a.question == nil || *q != *a.question {
		a.question, a.answer = q, ""
		if q != nil {
			poke(a.wake)
		} else {
			delete(a.events, reasonPodCIDR)
		}
	}
	if q != nil && a.answer != "" {
		return &PodCIDRError{Reason: a.answer}
	}
	return err
}

// speakUp has answers told by an Event from now on. A node that waits for its first
// podCIDR is no news.
func (a *adviser) speakUp() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kube != nil && !a.loud {
		a.loud = true
		poke(a.wake)
	}
}

// tell has an Event written on the Node, once; an empty message takes the wish
// back.
func (a *adviser) tell(reason, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.kube == nil || a.events[reason] == message:
	case message == "":
		delete(a.events, reason)
	default:
		a.events[reason] = message
		poke(a.wake)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run answers and writes until ctx ends.
func (a *adviser) run(ctx context.Context) {
	tick := time.NewTicker(adviseEvery)
	defer tick.Stop()
	written := map[string]telling{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		case <-tick.C:
		}
		a.refresh(ctx)
		a.write(ctx, written)
	}
}

// refresh answers the question, if there is one.
func (a *adviser) refresh(ctx context.Context) {
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
		poke(a.changed)
	}
	if a.loud {
		a.events[reasonPodCIDR] = answer
	}
}

// diagnose returns the whole message, or the question's own where nothing more is
// found.
func (a *adviser) diagnose(ctx context.Context, q *PodCIDRError, s *inputs.Snapshot) string {
	if a.kube == nil || s == nil {
		return q.Reason
	}
	d := podcidr.Diagnose(a.node, s.Nodes, podcidr.Read(ctx, a.kube.Kubernetes, a.kube.Dynamic), time.Now())
	if d == nil || d.Warning {
		return q.Reason
	}
	return d.Message()
}

// now is the diagnosis of this moment, for an agent that will not wait on.
func (a *adviser) now(ctx context.Context, err error, s *inputs.Snapshot) string {
	q := (*PodCIDRError)(nil)
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

// telling is an Event and when it was written.
type telling struct {
	message string
	at      time.Time
}

// write writes the Events that are not written yet, or that the API server is
// about to forget. What is over may be written anew when it comes back.
func (a *adviser) write(ctx context.Context, written map[string]telling) {
	a.mu.Lock()
	wanted := maps.Clone(a.events)
	a.mu.Unlock()
	maps.DeleteFunc(written, func(reason string, _ telling) bool { return wanted[reason] == "" })
	for reason, message := range wanted {
		w := written[reason]
		if (w.message != message || time.Since(w.at) > renewEvents) && a.warn(ctx, reason, message) {
			written[reason] = telling{message, time.Now()}
		}
	}
}

func (a *adviser) warn(ctx context.Context, reason, message string) bool {
	w := kube.Warning{About: kube.NodeReference(a.node), Reason: reason, Message: message}
	err := a.kube.Warn(ctx, a.node, w)
	if err != nil && ctx.Err() == nil {
		a.log.Error(err, "telling of the podCIDR by an Event on the Node")
	}
	return err == nil
}
