package ovsdb

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/fairlead-cni/fairlead/api"
)

// markKey is the key in external_ids whose value says what Fairlead uses a row for.
const markKey = "fairlead"

// Values of markKey.
const (
	markBridge  = "bridge"
	markGateway = "gateway"
	markTunnel  = "tunnel"
	markUplink  = "uplink"
	markPod     = "pod"
	markRetired = "retired" // formerly a pod's; it has no record
	markZone    = "conntrack"
)

// recordPrefix begins the keys of a pod's record. What "ovs-vsctl list Port"
// shows are these keys, and other programs may read them.
const recordPrefix = "fairlead-"

const (
	macKey   = recordPrefix + "mac"
	addrsKey = recordPrefix + "addresses" // with masks, separated by spaces

	// These three are only in the record of a bridged pod.
	vlanKey     = recordPrefix + "vlan"     // 0: untagged
	poolsKey    = recordPrefix + "ippools"  // one for each address, separated by spaces
	gatewaysKey = recordPrefix + "gateways" // separated by spaces
)

// fields maps the other keys of a record to the strings of an attachment.
func fields(a *api.Attachment) map[string]*string {
	return map[string]*string{
		recordPrefix + "container-id":  &a.ContainerID,
		recordPrefix + "ifname":        &a.IfName,
		recordPrefix + "netns":         &a.Netns,
		recordPrefix + "network":       &a.Network,
		recordPrefix + "pod-namespace": &a.PodNamespace,
		recordPrefix + "pod-name":      &a.PodName,
		recordPrefix + "pod-uid":       &a.PodUID,
		recordPrefix + "host-if":       &a.HostIf,
		recordPrefix + "boot-id":       &a.BootID,
	}
}

// encode returns the mark and record of a pod's Port.
func encode(a api.Attachment) map[string]string {
	ids := map[string]string{markKey: markPod, macKey: a.MAC.String()}
	for key, value := range fields(&a) {
		ids[key] = *value
	}
	ids[addrsKey] = joined(a.Addrs)
	if a.Bridged {
		ids[vlanKey], ids[poolsKey] = strconv.Itoa(int(a.VLAN)), strings.Join(a.Pools, " ")
		ids[gatewaysKey] = joined(a.Gateways)
	}
	return ids
}

func joined[T fmt.Stringer](list []T) string {
	text := make([]string, 0, len(list))
	for _, e := range list {
		text = append(text, e.String())
	}
	return strings.Join(text, " ")
}

// record is the decoded record of a pod port.
type record struct {
	row *port
	pod api.Attachment
	err error // why it can't be read
	// exact says that Fairlead's external_ids are exactly what encode returns for pod.
	exact bool
}

// recordOf decodes the record of a port; nil if it is not marked as a pod's.
func recordOf(p *port) *record {
	if p.ExternalIDs[markKey] != markPod {
		return nil
	}
	r := &record{row: p}
	if r.pod, r.err = decode(p.Name, p.ExternalIDs); r.err == nil {
		// It is shared: clip the lists so that append copies them.
		r.pod.Addrs, r.pod.Pools = slices.Clip(r.pod.Addrs), slices.Clip(r.pod.Pools)
		r.pod.Gateways = slices.Clip(r.pod.Gateways)
		r.exact = maps.Equal(ourIDs(p.ExternalIDs), encode(r.pod)) && checkText(r.pod) == nil
	}
	return r
}

// matches reports whether the record is exactly that of a.
func (r *record) matches(a api.Attachment) bool { return r != nil && r.exact && r.pod.Equal(a) }

// decode reads the record of the port called name. It refuses a record that lacks a key, that cannot be parsed, or that
// is another port's, as after a manual copy.
func decode(name string, ids map[string]string) (api.Attachment, error) {
	var a api.Attachment
	for key, value := range fields(&a) {
		v, ok := ids[key]
		if !ok {
			return api.Attachment{}, fmt.Errorf("key %s is missing", key)
		}
		*value = v
	}
	if a.ContainerID == "" || a.IfName == "" {
		return api.Attachment{}, errors.New("container ID or interface name is empty")
	}
	if a.HostIf != name {
		return api.Attachment{}, fmt.Errorf("the record is that of port %q", a.HostIf)
	}
	var err error
	if a.MAC, err = api.ParseMAC(ids[macKey]); err != nil {
		return api.Attachment{}, fmt.Errorf("key %s: %w", macKey, err)
	}
	addrs, ok := ids[addrsKey]
	if !ok { // a pod without an address has the key too
		return api.Attachment{}, fmt.Errorf("key %s is missing", addrsKey)
	}
	for _, s := range strings.Fields(addrs) {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return api.Attachment{}, fmt.Errorf("key %s: %w", addrsKey, err)
		}
		a.Addrs = append(a.Addrs, p)
	}
	if _, a.Bridged = ids[vlanKey]; a.Bridged {
		err = decodeBridged(&a, ids)
	}
	return a, err
}

// decodeBridged reads what only a bridged pod's record has.
func decodeBridged(a *api.Attachment, ids map[string]string) error {
	vlan, err := strconv.ParseUint(ids[vlanKey], 10, 16)
	if err != nil || vlan > api.MaxVLAN {
		return fmt.Errorf("key %s: %q is not a number from 0 to %d", vlanKey, ids[vlanKey], api.MaxVLAN)
	}
	a.VLAN, a.Pools = uint16(vlan), strings.Fields(ids[poolsKey])
	if len(a.Pools) != len(a.Addrs) {
		return fmt.Errorf("key %s: %d names for %d addresses", poolsKey, len(a.Pools), len(a.Addrs))
	}
	for _, s := range strings.Fields(ids[gatewaysKey]) {
		g, err := netip.ParseAddr(s)
		if err != nil {
			return fmt.Errorf("key %s: %w", gatewaysKey, err)
		}
		a.Gateways = append(a.Gateways, g)
	}
	return nil
}

// checkText rejects what the database cannot store (RFC 7047, 3.1: strings are Unicode without the zero byte); sent
// nevertheless, it would be read back different.
func checkText(a api.Attachment) error {
	texts := fields(&a)
	pools := strings.Join(a.Pools, " ")
	texts[poolsKey] = &pools
	for key, value := range texts {
		if !utf8.ValidString(*value) || strings.ContainsRune(*value, 0) {
			return fmt.Errorf("%s of pod %q is not text: %q", strings.TrimPrefix(key, recordPrefix), a.Pod(), *value)
		}
	}
	return nil
}
