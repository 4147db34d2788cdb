package api

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// IntervalsVariable is the environment variable from which fairlead-agent and fairlead-controller read intervals other
// than the defaults, in the form of ParseIntervals. Tests set it; it is not a setting for users.
const IntervalsVariable = "FAIRLEAD_TEST_INTERVALS"

// Intervals are the periods of actions that no event triggers. Each is positive. DefaultIntervals are the product's;
// tests shorten them.
type Intervals struct {
	Agent      AgentIntervals
	Inputs     InputIntervals
	Controller ControllerIntervals
}

// AgentIntervals are those of fairlead-agent.
type AgentIntervals struct {
	// Resync bounds how long a manual change lasts: the whole node is compared this often.
	Resync time.Duration
	// RetryFirst and RetryMost bound the wait after a failed round, which doubles from one to the other.
	RetryFirst, RetryMost time.Duration
	// Guard is how often the flow-restore-wait flag of ovs-vswitchd is checked.
	Guard time.Duration
	// Reconcile is how often leftovers of dead pods are looked for.
	Reconcile time.Duration
	// SuspectGrace is the grace period of reclaims on the node.
	SuspectGrace time.Duration
	// Allocations is how often the node's IPAllocations are read from the API server, and DoubtfulAllocations how often
	// while an unknown one is likely: after the start, and after a lost response.
	Allocations, DoubtfulAllocations time.Duration
	// Replaced is how long no address of a pool is allocated after the API server was found to have other data than
	// before: longer than nodes take to connect to it again and to recreate what it lacks.
	Replaced time.Duration
	// Probe is how often addresses are probed on the underlay of bridged pods, and ProbeAge, longer than that, the
	// maximum age of a result.
	Probe, ProbeAge time.Duration
	// Uplink is how often the uplink is compared without an interface event.
	Uplink time.Duration
	// Vswitchd is how often the agent checks whether ovs-vswitchd runs.
	Vswitchd time.Duration
	// Policies is the time until a new network policy gets its Event, and PolicyStep the delay of each further agent,
	// which writes it only if those before it have not.
	Policies, PolicyStep time.Duration
	// Advice is how old the diagnosis of a podCIDR fault may get while the fault lasts.
	Advice time.Duration
	// Reach is how often a node sends to each other node that it probes, in each family that is the only one.
	Reach time.Duration
}

// InputIntervals are those of watching the API server, or a directory of manifests.
type InputIntervals struct {
	// RetryFirst and RetryMost bound the wait after a failed request, which doubles from one to the other.
	RetryFirst, RetryMost time.Duration
	// StartGrace is how long a start waits for the API server before it continues with the last known objects.
	StartGrace time.Duration
	// Save is how often the API server's objects are written to disk, if they have changed. SavePeers is the same for
	// other nodes' Pods that policies depend on.
	Save, SavePeers time.Duration
	// OtherPoliciesFirst and OtherPolicies are the waits before the first and each further poll of policies of kinds
	// other than NetworkPolicy; each has jitter, up to twice as long.
	OtherPoliciesFirst, OtherPolicies time.Duration
	// Reread is how often the directory is read without an event.
	Reread time.Duration
}

// ControllerIntervals are those of fairlead-controller.
type ControllerIntervals struct {
	// Pass is the shortest time between two passes over pools, podCIDRs or lost owners, and PassAtLeast, longer than
	// that, the longest: the end of a cooling has no event.
	Pass, PassAtLeast time.Duration
	// Sets and SetsAtLeast are the same for the addresses of StatefulSets.
	Sets, SetsAtLeast time.Duration
	// Keepers is how often it is checked whether Deployments and VMs with reserved addresses are gone.
	Keepers time.Duration
	// OtherAllocator is how often it is checked whether another allocator assigns podCIDRs to Nodes.
	OtherAllocator time.Duration
	// Withdraw is how often an uninstallation is looked for that was interrupted before Fairlead was installed again.
	Withdraw time.Duration
	// Services is how often the Service CIDRs are read, which seldom change.
	Services time.Duration
	// Port is how often a port that another controller on the node has is retried.
	Port time.Duration
	// LeaseDuration, LeaseRenew and LeaseRetry, each shorter than the one before, are those of client-go's leader
	// election. The API counts a Lease's duration in whole seconds.
	LeaseDuration, LeaseRenew, LeaseRetry time.Duration
}

// DefaultIntervals are the product's.
func DefaultIntervals() Intervals {
	return Intervals{
		Agent: AgentIntervals{
			Resync:     15 * time.Second,
			RetryFirst: 200 * time.Millisecond, RetryMost: 5 * time.Second,
			Guard:        time.Second,
			Reconcile:    20 * time.Second,
			SuspectGrace: 10 * time.Second,
			Allocations:  5 * time.Minute, DoubtfulAllocations: 30 * time.Second,
			Replaced: 45 * time.Second,
			Probe:    20 * time.Second, ProbeAge: 30 * time.Second,
			Uplink:   10 * time.Second,
			Vswitchd: 500 * time.Millisecond,
			Policies: 10 * time.Second, PolicyStep: 30 * time.Second,
			Advice: 30 * time.Second,
			Reach:  2 * time.Second,
		},
		Inputs: InputIntervals{
			RetryFirst: 500 * time.Millisecond, RetryMost: 5 * time.Second,
			StartGrace:         3 * time.Second,
			Save:               2 * time.Second,
			SavePeers:          10 * time.Second,
			OtherPoliciesFirst: 5 * time.Second, OtherPolicies: 10 * time.Minute,
			Reread: 10 * time.Second,
		},
		Controller: ControllerIntervals{
			Pass: time.Second, PassAtLeast: 5 * time.Second,
			Sets: 100 * time.Millisecond, SetsAtLeast: 15 * time.Second,
			Keepers:        30 * time.Second,
			OtherAllocator: time.Minute,
			Withdraw:       time.Minute,
			Services:       time.Minute,
			Port:           5 * time.Second,
			LeaseDuration:  15 * time.Second, LeaseRenew: 10 * time.Second, LeaseRetry: 2 * time.Second,
		},
	}
}

// ParseIntervals parses "agent.resync=2s,controller.pass=100ms": names as in the error for an unknown one, values of
// time.ParseDuration. Intervals that text does not name keep their defaults; an empty text names none.
func ParseIntervals(text string) (Intervals, error) {
	i := DefaultIntervals()
	if text == "" {
		return i, nil
	}
	byName := i.byName()
	for pair := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(pair, "=")
		d := byName[name]
		if d == nil {
			return i, fmt.Errorf("%q is not an interval: the intervals are %s", name, strings.Join(slices.Sorted(maps.Keys(byName)), ", "))
		}
		var err error
		if *d, err = time.ParseDuration(value); err != nil {
			return i, fmt.Errorf("interval %s: %w (write it like 1.5s)", name, err)
		}
	}
	return i, i.Validate()
}

// Validate returns an error that names each invalid interval.
func (i *Intervals) Validate() error {
	var errs []error
	byName := i.byName()
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		if d := *byName[name]; d <= 0 {
			errs = append(errs, fmt.Errorf("interval %s is %s: it must be positive", name, d))
		}
	}
	for _, order := range [][2]string{
		{"agent.retryFirst", "agent.retryMost"}, {"agent.probe", "agent.probeAge"},
		{"inputs.retryFirst", "inputs.retryMost"},
		{"controller.pass", "controller.passAtLeast"}, {"controller.sets", "controller.setsAtLeast"},
		{"controller.leaseRetry", "controller.leaseRenew"}, {"controller.leaseRenew", "controller.leaseDuration"},
	} {
		if shorter, longer := *byName[order[0]], *byName[order[1]]; shorter >= longer {
			errs = append(errs, fmt.Errorf("interval %s is %s: it must be shorter than %s, which is %s",
				order[0], shorter, order[1], longer))
		}
	}
	return errors.Join(errs...)
}

func (i *Intervals) byName() map[string]*time.Duration {
	a, in, c := &i.Agent, &i.Inputs, &i.Controller
	return map[string]*time.Duration{
		"agent.resync": &a.Resync, "agent.retryFirst": &a.RetryFirst, "agent.retryMost": &a.RetryMost,
		"agent.guard": &a.Guard, "agent.reconcile": &a.Reconcile, "agent.suspectGrace": &a.SuspectGrace,
		"agent.allocations": &a.Allocations, "agent.doubtfulAllocations": &a.DoubtfulAllocations,
		"agent.replaced": &a.Replaced,
		"agent.probe":    &a.Probe, "agent.probeAge": &a.ProbeAge, "agent.uplink": &a.Uplink, "agent.vswitchd": &a.Vswitchd,
		"agent.policies": &a.Policies, "agent.policyStep": &a.PolicyStep, "agent.advice": &a.Advice,
		"agent.reach": &a.Reach,

		"inputs.retryFirst": &in.RetryFirst, "inputs.retryMost": &in.RetryMost, "inputs.startGrace": &in.StartGrace,
		"inputs.save": &in.Save, "inputs.savePeers": &in.SavePeers,
		"inputs.otherPoliciesFirst": &in.OtherPoliciesFirst,
		"inputs.otherPolicies":      &in.OtherPolicies, "inputs.reread": &in.Reread,

		"controller.pass": &c.Pass, "controller.passAtLeast": &c.PassAtLeast,
		"controller.sets": &c.Sets, "controller.setsAtLeast": &c.SetsAtLeast,
		"controller.keepers": &c.Keepers, "controller.otherAllocator": &c.OtherAllocator, "controller.withdraw": &c.Withdraw,
		"controller.services": &c.Services, "controller.port": &c.Port,
		"controller.leaseDuration": &c.LeaseDuration, "controller.leaseRenew": &c.LeaseRenew,
		"controller.leaseRetry": &c.LeaseRetry,
	}
}
