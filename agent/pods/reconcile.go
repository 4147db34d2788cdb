package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/datapath/link"
)

// leftover is something that no living pod seems to own.
type leftover struct {
	what   string // failed ADD, attachment, lease or interface
	hostIf string
	key    attachments.Key // zero for an interface
	// network is the name in the CNI configuration, if it is known.
	network string
}

// RunReconciler reconciles at intervals, until ctx ends.
func (p *Pods) RunReconciler(ctx context.Context) {
	signal.Loop(ctx, p.Intervals.Reconcile, p.Addresses.Wake(), func(ctx context.Context) {
		if err := p.Reconcile(ctx); err != nil && ctx.Err() == nil {
			p.Log.Error(err, "reclaiming what deleted pods left behind")
		}
	})
}

// Reconcile reclaims what deleted pods left behind: an agent that was
// killed in the middle of an ADD or a DEL leaves a lease, a veth or a port.
//
// A pod interface lives as long as its veth: the kernel removes both ends with the pod's network namespace, and then
// the address can no longer be in use. So an attachment without its host end is dead, a veth or a lease alone belongs
// to an ADD that was never answered, and everything of another boot is dead. A veth with a lease counts as in use, and
// its attachment is restored. An address whose attachment lives but whose lease is lost is reserved again before
// another pod can get it.
func (p *Pods) Reconcile(ctx context.Context) error {
	// These come first: an unreadable lease may be that of a living attachment.
	errs := []error{p.Registry.Reaper.Clear(ctx), p.restoreLeases(), p.rebuild(ctx)}
	found, err := p.leftovers(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, l := range found {
		errs = append(errs, p.reclaim(ctx, l))
	}
	return errors.Join(append(errs, p.Addresses.Reconcile(ctx))...)
}

// leftovers looks without a lock: each finding is checked again under its lock before anything is removed.
func (p *Pods) leftovers(ctx context.Context) ([]leftover, error) {
	known, err := p.Registry.Records()
	if err != nil {
		return nil, err
	}
	hosts, err := p.Registry.Hosts()
	if err != nil {
		return nil, err
	}
	leases, err := p.leases.Leases()
	if err != nil {
		return nil, fmt.Errorf("listing leases: %w", err)
	}
	var found []leftover
	seen := map[string]bool{}
	p.logBroken(known.Broken)
	for host, f := range p.unfinished.all() {
		seen[host] = true
		found = append(found, leftover{"failed ADD", host, f.Key, f.network})
	}
	for host := range known.Broken {
		seen[host] = true // unknown means in use
	}
	for host, a := range known.Pods {
		if !seen[host] && !p.Registry.Alive(a.Attachment, hosts) {
			found = append(found, leftover{"attachment", host, attachments.KeyOf(a.Attachment), a.Network})
		}
		seen[host] = true
	}
	for _, l := range leases {
		host := link.HostName(l.ContainerID, l.IfName)
		if seen[host] {
			continue
		}
		seen[host] = true
		if !slices.Contains(hosts, host) { // else it is in use, although rebuild could not restore its record
			found = append(found, leftover{what: "lease", hostIf: host,
				key: attachments.Key{ContainerID: l.ContainerID, IfName: l.IfName}})
		}
	}
	bare := slices.DeleteFunc(hosts, func(host string) bool { return seen[host] })
	held, err := p.heldBy(ctx, bare)
	if err != nil {
		return found, nil // unknown means in use: rebuild has returned why
	}
	for _, host := range bare {
		if len(held[host]) == 0 {
			found = append(found, leftover{what: "interface", hostIf: host})
		}
	}
	return found, nil
}

// logBroken logs unreadable records, each once. Only Reconcile calls it.
func (p *Pods) logBroken(broken map[string]string) {
	for host, why := range broken {
		if p.broken[host] != why {
			p.Log.Info("a pod's record in OVSDB is unreadable: nothing of the pod is removed, but its network may not work. "+
				"Repair the record or delete the pod", "interface", host, "problem", why)
		}
	}
	p.broken = broken
}

// reclaim does what a DEL does, unless the leftover turns out to be alive or a CNI request is working on it.
func (p *Pods) reclaim(ctx context.Context, l leftover) error {
	if !p.Registry.Locks.TryLock(l.hostIf) {
		return nil
	}
	defer p.Registry.Locks.Unlock(l.hostIf)
	if _, failed := p.unfinished.all()[l.hostIf]; !failed {
		if inUse, err := p.Registry.InUse(l.hostIf); err != nil || inUse {
			return err
		}
	}
	var err error
	if l.key == (attachments.Key{}) {
		err = link.Detach(l.hostIf)
	} else {
		err = p.remove(ctx, l.key, l.network)
	}
	if err != nil {
		return fmt.Errorf("reclaiming the %s of a deleted pod (container %q): %w", l.what, l.key.ContainerID, err)
	}
	p.Log.Info("reclaimed what a deleted pod left behind", "kind", l.what, "containerID", l.key.ContainerID,
		"interface", l.hostIf)
	p.Metrics.Pods.Reclaimed.WithLabelValues(strings.ReplaceAll(strings.ToLower(l.what), " ", "_")).Inc()
	return nil
}
