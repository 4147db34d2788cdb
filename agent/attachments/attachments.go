// Package attachments keeps track of this node's pod interfaces: which are on record in OVSDB (package ovsdb says how a
// record is recognised), which have a host end in the kernel (package link, by interface group), and for which a
// request is in progress. An attachment is named by its host end, whose name follows from container and interface.
package attachments

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
)

// Key identifies an attachment, as CNI does: by CNI_CONTAINERID and CNI_IFNAME.
type Key struct{ ContainerID, IfName string }

// KeyOf is the key of a.
func KeyOf(a api.Attachment) Key { return Key{a.ContainerID, a.IfName} }

// Host is the name of the host end.
func (k Key) Host() string { return link.HostName(k.ContainerID, k.IfName) }

// HostOf is the name by which requests, files and the reconciler distinguish owners: the host end of the owner's
// interface. If another plugin created the interface, it is a name that no interface of Fairlead has, and that is
// unique to the network.
func HostOf(o api.AllocationOwner) string {
	if !o.IPAMOnly {
		return link.HostName(o.ContainerID, o.IfName)
	}
	sum := sha256.Sum256([]byte(o.ContainerID + "/" + o.IfName + "/" + o.Network))
	return "ipam-" + hex.EncodeToString(sum[:16])
}

// Registry is what is known about this node's attachments. Its methods may be called by any number of goroutines.
type Registry struct {
	// BootID is /proc/sys/kernel/random/boot_id: an attachment of another boot is dead.
	BootID string
	// Locks say for which attachments a request is in progress.
	Locks Locks
	// Reaper removes the ports and veths of those that were released.
	Reaper *Reaper

	db       *ovsdb.DB
	bridge   string
	recorded *Recorded
}

// New returns the registry of the attachments on bridge.
func New(db *ovsdb.DB, bridge, bootID string, recorded *Recorded) *Registry {
	return &Registry{BootID: bootID, Reaper: newReaper(db, bridge), db: db, bridge: bridge, recorded: recorded}
}

// Hosts are the host ends of Fairlead's veths, without those that wait for the reaper.
func (r *Registry) Hosts() ([]string, error) {
	all, err := link.Hosts()
	if err != nil {
		return nil, fmt.Errorf("listing pods' interfaces: %w", err)
	}
	return slices.DeleteFunc(all, r.Reaper.Has), nil
}

// Alive reports whether the attachment is of this boot and its host end is among hosts. The kernel removes both ends of
// a veth with the pod's network namespace.
func (r *Registry) Alive(a api.Attachment, hosts []string) bool {
	return a.BootID == r.BootID && slices.Contains(hosts, a.HostIf)
}

// InUse reports whether the host end belongs to a living attachment, or to one whose record can't be read.
func (r *Registry) InUse(host string) (bool, error) {
	hosts, err := r.Hosts()
	if err != nil {
		return false, err
	}
	known, err := r.Records()
	if err != nil {
		return false, err
	}
	_, broken := known.Broken[host]
	a, ok := known.Pods[host]
	return broken || ok && r.Alive(a.Attachment, hosts), nil
}
