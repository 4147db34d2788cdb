package ovsdb

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"unicode/utf8"

	"github.com/fairlead-cni/fairlead/api"
)

// markKey is the key in external_ids whose value says what a row is to us.
const markKey = "fairlead"

// Values of markKey.
const (
	markBridge  = "bridge"
	markGateway = "gateway"
	markTunnel  = "tunnel"
	markPod     = "pod"
)

// recordPrefix begins the keys of a pod's record. What "ovs-vsctl list Port"
// shows are these keys, and other programs may read them.
const recordPrefix = "fairlead-"

const (
	macKey   = recordPrefix + "mac"
	addrsKey = recordPrefix + "addresses" // with masks, separated by spaces
)

// fields ties the other keys of a record to the strings of an attachment.
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

// encode is the mark and record of a pod's Port.
func encode(a api.Attachment) map[string]string {
	ids := map[string]string{markKey: markPod, macKey: a.MAC.String()}
	for key, value := range fields(&a) {
		ids[key] = *value
	}
	var addrs []string
	for _, p := range a.Addrs {
		addrs = append(addrs, p.String())
	}
	ids[addrsKey] = strings.Join(addrs, " ")
	return ids
}

// decode reads the record of the port called name. It refuses a record that
// lacks a key, that cannot be parsed, or that is of another port, as after a
// copy by hand.
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
	for _, s := range strings.Fields(ids[addrsKey]) {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return api.Attachment{}, fmt.Errorf("key %s: %w", addrsKey, err)
		}
		a.Addrs = append(a.Addrs, p)
	}
	return a, nil
}

// checkText refuses what the database cannot hold (RFC 7047, 3.1: strings are
// Unicode without the zero byte); sent all the same it would come back
// different.
func checkText(a api.Attachment) error {
	for key, value := range fields(&a) {
		if !utf8.ValidString(*value) || strings.ContainsRune(*value, 0) {
			return fmt.Errorf("%s of pod %q is not text: %q", strings.TrimPrefix(key, recordPrefix), a.Pod(), *value)
		}
	}
	return nil
}
