package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
)

// busy marks attachments, by the name of their host end, that a CNI request or
// the reconciler works on, so that neither takes apart what the other makes.
type busy struct {
	mu    sync.Mutex
	hosts map[string]bool
	last  time.Time // when one was done
}

// try marks host and returns true, or returns false when it is marked.
func (b *busy) try(host string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hosts[host] {
		return false
	}
	if b.hosts == nil {
		b.hosts = map[string]bool{}
	}
	b.hosts[host] = true
	return true
}

func (b *busy) done(host string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.hosts, host)
	b.last = time.Now()
}

// quiet reports whether nobody has been at work for a while.
func (b *busy) quiet() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.hosts) == 0 && time.Since(b.last) >= quiet
}

// leftover is something that no living pod seems to own.
type leftover struct {
	what   string // failed ADD, attachment, lease or interface
	hostIf string
	key    key // zero for an interface
	// network is the name in the CNI configuration, where it is known.
	network string
}

// reconcile takes back what pods that are gone left behind: an agent that was
// killed in the middle of an ADD or a DEL leaves a lease, a veth or a port.
//
// A pod interface lives as long as its veth: the kernel removes both ends with
// the pod's network namespace, and then nobody can use the address any more.
// So an attachment without its host end is dead, a veth or a lease alone was
// never answered for, and everything of another boot is dead. A veth with a
// lease counts as in use, and gets its attachment back.
// An address whose attachment lives but whose lease is lost is reserved again,
// before anybody else can get it.
func (p *pods) reconcile(ctx context.Context) error {
	// First: an unreadable lease may be the one of a living attachment.
	errs := []error{p.reaper.clear(ctx), p.restoreLeases(), p.rebuild(ctx)}
	found, err := p.leftovers(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, l := range found {
		errs = append(errs, p.reclaim(ctx, l))
	}
	return errors.Join(append(errs, p.reconcileAllocations(ctx))...)
}

// leftovers looks without a lock: what it finds is looked at again, marked
// busy, before anything is taken.
func (p *pods) leftovers(ctx context.Context) ([]leftover, error) {
	known, err := p.records()
	if err != nil {
		return nil, err
	}
	hosts, err := p.hosts()
	if err != nil {
		return nil, err
	}
	leases, err := p.leases.Leases()
	if err != nil {
		return nil, fmt.Errorf("listing leases: %w", err)
	}
	var found []leftover
	seen := map[string]bool{}
	p.tellBroken(known.broken)
	for host, f := range p.unfinished.all() {
		seen[host] = true
		found = append(found, leftover{"failed ADD", host, f.key, f.network})
	}
	for host := range known.broken {
		seen[host] = true // unknown means in use
	}
	for host, a := range known.pods {
		if !seen[host] && !p.alive(a.Attachment, hosts) {
			found = append(found, leftover{"attachment", host, keyOf(a.Attachment), a.Network})
		}
		seen[host] = true
	}
	for _, l := range leases {
		if host := link.HostName(l.ContainerID, l.IfName); !seen[host] {
			seen[host] = true
			found = append(found, leftover{what: "lease", hostIf: host, key: key{l.ContainerID, l.IfName}})
		}
	}
	bare := slices.DeleteFunc(hosts, func(host string) bool { return seen[host] })
	held, err := p.heldBy(ctx, bare)
	if err != nil {
		return found, nil // unknown means in use: rebuild has told why
	}
	for _, host := range bare {
		if len(held[host]) == 0 {
			found = append(found, leftover{what: "interface", hostIf: host})
		}
	}
	return found, nil
}

// hosts are the host ends of our veths, without those that wait for the reaper.
func (p *pods) hosts() ([]string, error) {
	all, err := link.Hosts()
	if err != nil {
		return nil, fmt.Errorf("listing pods' interfaces: %w", err)
	}
	return slices.DeleteFunc(all, p.reaper.has), nil
}

// tellBroken logs records that can't be read, each once. Only reconcile calls it.
func (p *pods) tellBroken(broken map[string]string) {
	for host, why := range broken {
		if p.told[host] != why {
			p.log.Info("a pod's record in OVSDB can't be read: nothing of the pod is taken away, but its network may not work. "+
				"Repair the record or delete the pod", "interface", host, "problem", why)
		}
	}
	p.told = broken
}

func (p *pods) alive(a api.Attachment, hosts []string) bool {
	return a.BootID == p.bootID && slices.Contains(hosts, a.HostIf)
}

// reclaim does what a DEL does, unless the leftover turns out to be alive or
// a CNI request is at work on it.
func (p *pods) reclaim(ctx context.Context, l leftover) error {
	if !p.busy.try(l.hostIf) {
		return nil
	}
	defer p.busy.done(l.hostIf)
	if _, failed := p.unfinished.all()[l.hostIf]; !failed {
		if inUse, err := p.inUse(l.hostIf); err != nil || inUse {
			return err
		}
	}
	var err error
	if l.key == (key{}) {
		err = link.Detach(l.hostIf)
	} else {
		err = p.remove(ctx, l.key, l.network)
	}
	if err != nil {
		return fmt.Errorf("taking back the %s of a pod that is gone (container %q): %w", l.what, l.key.containerID, err)
	}
	p.log.Info("took back the leftovers of a pod that is gone", "found", l.what, "container", l.key.containerID,
		"interface", l.hostIf)
	p.metrics.reclaimed.WithLabelValues(l.what).Inc()
	return nil
}

// inUse reports whether a living attachment has the host end, or one whose
// record can't be read.
func (p *pods) inUse(host string) (bool, error) {
	hosts, err := p.hosts()
	if err != nil {
		return false, err
	}
	known, err := p.records()
	if err != nil {
		return false, err
	}
	_, broken := known.broken[host]
	a, ok := known.pods[host]
	return broken || ok && p.alive(a.Attachment, hosts), nil
}

// restoreLeases reserves the addresses of living attachments whose leases are
// lost.
func (p *pods) restoreLeases() error {
	leases, err := p.leases.Leases()
	if err != nil {
		return fmt.Errorf("listing leases: %w", err)
	}
	leased := map[string]bool{}
	for _, l := range leases {
		leased[l.Addr.String()+" "+l.ContainerID+" "+l.IfName] = true
	}
	known, err := p.records()
	if err != nil {
		return err
	}
	var errs []error
	for host, a := range known.pods {
		if a.Bridged {
			continue // see restoreAllocations
		}
		for _, addr := range a.Addrs {
			if !leased[addr.Addr().String()+" "+a.ContainerID+" "+a.IfName] && a.BootID == p.bootID {
				errs = append(errs, p.restoreLease(host, addr.Addr(), a.Attachment))
			}
		}
	}
	return errors.Join(errs...)
}

func (p *pods) restoreLease(host string, addr netip.Addr, a api.Attachment) error {
	if !p.busy.try(host) {
		return nil
	}
	defer p.busy.done(host)
	known, err := p.records()
	if err != nil {
		return err
	}
	if _, ok := known.pods[host]; !ok {
		return nil // deleted since it was looked at
	}
	if err := p.leases.Reserve(addr, a.ContainerID, a.IfName); err != nil {
		return fmt.Errorf("address of pod %s: %w", a.Pod(), err)
	}
	p.log.Info("a lease was lost and is reserved again", "pod", a.Pod(), "address", addr)
	return nil
}
