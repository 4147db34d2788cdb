package pods

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"

	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/datapath/link"
)

// allocate leases addresses that no attachment on record has. If one has them, its lease was lost ("rm -r", another
// disk): the leases are restored, and other addresses taken.
func (p *Pods) allocate(r cniserver.Request, s *status.Status) ([]netip.Prefix, error) {
	for range 2 {
		addrs, err := p.leases.Allocate(r.ContainerID, r.IfName, s.PodCIDRs)
		if err != nil {
			return nil, cniserver.NoAddress(err)
		}
		known, err := p.Registry.Records()
		if err != nil {
			return nil, cniserver.TryAgainLater(err)
		}
		if known.Holder(addrs, link.HostName(r.ContainerID, r.IfName), p.Registry.BootID) == "" {
			return addrs, nil
		}
		if err := errors.Join(p.leases.Release(r.ContainerID, r.IfName), p.restoreLeases()); err != nil {
			return nil, cniserver.TryAgainLater(fmt.Errorf("restoring leases that were lost: %w", err))
		}
	}
	return nil, cniserver.TryAgainLater(errors.New("leases of running pods were lost and are not all restored yet"))
}

// Reserve leases an address of the podCIDR to an attachment that is to have that one. The error names the pod that has
// it, if it is known.
func (p *Pods) Reserve(addr netip.Addr, containerID, ifName string) error {
	err := p.leases.Reserve(addr, containerID, ifName)
	if err == nil {
		return nil
	}
	known, rerr := p.Registry.Records()
	if rerr != nil {
		return err
	}
	return cmp.Or(takenBy(known, addr, link.HostName(containerID, ifName), p.Registry.BootID), err)
}

// Release releases the leases of an attachment, which need not exist.
func (p *Pods) Release(containerID, ifName string) error {
	return p.leases.Release(containerID, ifName)
}

// takenBy names the pod, other than the one with the given host end, that has an address; nil: none has it.
func takenBy(known attachments.Records, addr netip.Addr, host, bootID string) error {
	holder := known.Holder([]netip.Prefix{netip.PrefixFrom(addr, addr.BitLen())}, host, bootID)
	if holder == "" {
		return nil
	}
	return fmt.Errorf("pod %s has the address %s, which is free once that pod is deleted", known.Pods[holder].Pod(), addr)
}

// restoreLeases reserves the addresses of living attachments whose leases are
// lost.
func (p *Pods) restoreLeases() error {
	leases, err := p.leases.Leases()
	if err != nil {
		return fmt.Errorf("listing leases: %w", err)
	}
	leased := map[string]bool{}
	for _, l := range leases {
		leased[l.Addr.String()+" "+l.ContainerID+" "+l.IfName] = true
	}
	known, err := p.Registry.Records()
	if err != nil {
		return err
	}
	var errs []error
	for host, a := range known.Pods {
		if a.Bridged {
			continue // see restoreAllocations
		}
		for _, addr := range a.Addrs {
			if !leased[addr.Addr().String()+" "+a.ContainerID+" "+a.IfName] && a.BootID == p.Registry.BootID {
				errs = append(errs, p.restoreLease(host, addr.Addr(), a.Attachment))
			}
		}
	}
	return errors.Join(errs...)
}

func (p *Pods) restoreLease(host string, addr netip.Addr, a api.Attachment) error {
	if !p.Registry.Locks.TryLock(host) {
		return nil
	}
	defer p.Registry.Locks.Unlock(host)
	known, err := p.Registry.Records()
	if err != nil {
		return err
	}
	if _, ok := known.Pods[host]; !ok {
		return nil // deleted meanwhile
	}
	if err := p.leases.Reserve(addr, a.ContainerID, a.IfName); err != nil {
		return fmt.Errorf("address of pod %s: %w", a.Pod(), err)
	}
	p.Log.Info("restored a lost lease", "pod", a.Pod(), "address", addr)
	return nil
}
