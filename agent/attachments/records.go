package attachments

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
)

// Records are the attachments on record in OVSDB, by host end.
type Records struct {
	Pods map[string]ovsdb.PodPort
	// Broken are host ends whose record can't be read, with the reason: a pod may be using them.
	Broken map[string]string
}

// Records reads the records. A missing one that is not restored yet counts as broken.
func (r *Registry) Records() (Records, error) {
	obs, err := r.db.Observe(r.bridge)
	if err != nil {
		return Records{}, err
	}
	out := Records{Pods: map[string]ovsdb.PodPort{}, Broken: map[string]string{}}
	for _, a := range obs.Pods {
		out.Pods[a.HostIf] = a
	}
	for _, b := range obs.Broken {
		out.Broken[b.Name] = b.Reason
	}
	for _, host := range r.recorded.hosts() {
		if _, there := out.Pods[host]; !there && out.Broken[host] == "" {
			out.Broken[host] = "it was deleted from OVSDB and is not restored yet"
		}
	}
	return out, nil
}

// Has reports whether the host end has a record, readable or not.
func (r Records) Has(host string) bool {
	_, ok := r.Pods[host]
	_, broken := r.Broken[host]
	return ok || broken
}

// Holder is the host end of an attachment of this boot, other than host's, that has one of addrs, or empty.
func (r Records) Holder(addrs []netip.Prefix, host, bootID string) string {
	for other, a := range r.Pods {
		if other != host && a.BootID == bootID && slices.ContainsFunc(a.Addrs, func(p netip.Prefix) bool {
			return slices.ContainsFunc(addrs, func(q netip.Prefix) bool { return p.Addr() == q.Addr() })
		}) {
			return other
		}
	}
	return ""
}
