package cniserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver/wire"
)

// netConf is a network configuration (CNI spec, section 3, "Deriving request configuration"), key by key: a key that a
// verb does not need may have any value, and unknown keys are meant for the runtime.
type netConf map[string]json.RawMessage

// role is the plugin type as which the configuration calls Fairlead.
type role int

const (
	mainPlugin role = iota
	ipamPlugin      // by another main plugin, for its addresses
	otherPlugin
)

func parseNetConf(config []byte) (netConf, error) {
	var c netConf
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, decodingError("the network configuration", err)
	}
	if c == nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network configuration is not a JSON object", "")
	}
	return c, nil
}

// decodingError rewords an error of encoding/json for the user.
func decodingError(what string, err error) error {
	text := err.Error()
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		if wrong.Field != "" {
			what += ", key " + wrong.Field
		}
		text = fmt.Sprintf("got a %s, want a %s", wrong.Value, wrong.Type)
	}
	return types.NewError(types.ErrDecodingFailure, what+": "+text, "")
}

// get decodes the value of key into to, which keeps its value if the key is missing.
func (c netConf) get(key string, to any) error {
	raw, ok := c[key]
	if !ok {
		return nil
	}
	if err := json.Unmarshal(raw, to); err != nil {
		return decodingError(fmt.Sprintf("network configuration, key %q", key), err)
	}
	return nil
}

// cniVersion returns the version of the spec to respond in, one of wire.Versions that has the verb.
func (c netConf) cniVersion(verb string) (string, error) {
	v := "0.1.0" // the default (spec of that time)
	if err := c.get("cniVersion", &v); err != nil {
		return "", err
	}
	if !slices.Contains(wire.Versions(), v) {
		return "", types.NewError(types.ErrIncompatibleCNIVersion, fmt.Sprintf(
			"cniVersion %q is not supported: use one of %s", v, strings.Join(wire.Versions(), ", ")), "")
	}
	since := map[string]string{"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}[verb]
	if since != "" && slices.Index(wire.Versions(), v) < slices.Index(wire.Versions(), since) {
		return "", types.NewError(types.ErrIncompatibleCNIVersion, fmt.Sprintf(
			"%s has CNI version %s, but the configuration has cniVersion %q", verb, since, v), "")
	}
	return v, nil
}

func (c netConf) name() (string, error) {
	var name string
	if err := c.get("name", &name); err != nil {
		return "", err
	}
	if err := utils.ValidateNetworkName(name); err != nil {
		return "", err
	}
	return name, nil
}

// role reads type and ipam.type. Fairlead is installed under its own name and,
// for networks that were configured for Antrea, as antrea. The error says why
// an ADD in that role fails.
func (c netConf) role() (role, error) {
	ours := []string{"fairlead", "antrea"}
	var name string
	var ipam struct{ Type string }
	if err := c.get("type", &name); err != nil {
		return otherPlugin, err
	}
	err := c.get("ipam", &ipam)
	switch {
	case slices.Contains(ours, name):
		// Antrea's own configuration has host-local; here as there the agent allocates from the podCIDR of its Node.
		if err == nil && ipam.Type != "" && ipam.Type != "host-local" && !slices.Contains(ours, ipam.Type) {
			err = types.NewError(types.ErrUnsupportedField, fmt.Sprintf(
				"ipam.type %q is not supported: the agent allocates the addresses. Remove the key ipam", ipam.Type), "")
		}
		return mainPlugin, err
	case slices.Contains(ours, ipam.Type):
		return ipamPlugin, nil
	default:
		return otherPlugin, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(
			"type is %q, but Fairlead serves networks of type fairlead or antrea only", name), "")
	}
}

func (c netConf) dns() (types.DNS, error) {
	var dns types.DNS
	err := c.get("dns", &dns)
	return dns, err
}

// previous are the keys of a prevResult that are read. They are the same in all supported versions of the spec.
type previous struct {
	Interfaces []struct{ Name, Mac, Sandbox string }
	IPs        []struct {
		Interface        *int
		Address, Gateway string
	}
}

// previous returns nil if there is no prevResult.
func (c netConf) previous() (*previous, error) {
	var prev *previous
	err := c.get("prevResult", &prev)
	return prev, err
}

func badPrevResult(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, "prevResult: "+fmt.Sprintf(format, args...), "")
}

func errNoPrevResult() error {
	return types.NewError(types.ErrInvalidNetworkConfig, "CHECK without prevResult", "")
}

// prevInterface is the pod's interface in the result of the ADD.
type prevInterface struct {
	mac   api.MAC
	addrs []netip.Prefix
}

// prevResult returns nil if there is no prevResult.
func (c netConf) prevResult(ifName string) (*prevInterface, error) {
	prev, err := c.previous()
	if err != nil || prev == nil {
		return nil, err
	}
	var out prevInterface
	index := -1
	for i, in := range prev.Interfaces {
		if in.Name != ifName || in.Sandbox == "" {
			continue
		}
		index = i
		if out.mac, err = api.ParseMAC(in.Mac); err != nil {
			return nil, badPrevResult("interface %s: %v", ifName, err)
		}
	}
	if index < 0 {
		return nil, badPrevResult("no interface %s in a sandbox", ifName)
	}
	for _, ip := range prev.IPs {
		if ip.Interface != nil && *ip.Interface != index {
			continue
		}
		addr, err := netip.ParsePrefix(ip.Address)
		if err != nil {
			return nil, badPrevResult("address %q: %v", ip.Address, err)
		}
		out.addrs = append(out.addrs, addr)
	}
	return &out, nil
}

// validAttachments parses the list of a GC. A missing list is an error: treated as empty it would remove the interfaces
// of all pods of the network. libcni writes an empty list as null.
func (c netConf) validAttachments() ([]AttachmentID, error) {
	const key = "cni.dev/valid-attachments"
	var list []types.GCAttachment
	if _, ok := c[key]; !ok {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(
			"GC without the key %q: nothing was removed", key), "")
	}
	if err := c.get(key, &list); err != nil {
		return nil, err
	}
	valid := make([]AttachmentID, 0, len(list))
	for i, a := range list {
		if a.ContainerID == "" || a.IfName == "" {
			return nil, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(
				"%s: entry %d lacks containerID or ifname; nothing was removed", key, i), "")
		}
		valid = append(valid, AttachmentID{a.ContainerID, a.IfName})
	}
	return valid, nil
}

// podArgs are the parts of CNI_ARGS that Kubernetes' runtimes set. LoadArgs requires the fields to have the keys'
// names.
type podArgs struct {
	types.CommonArgs
	K8S_POD_NAMESPACE types.UnmarshallableString
	K8S_POD_NAME      types.UnmarshallableString
	K8S_POD_UID       types.UnmarshallableString
}

// parseArgs parses CNI_ARGS. Unknown keys are an error unless it has IgnoreUnknown=true (CNI conventions), which
// runtimes set.
func parseArgs(args string) (podArgs, error) {
	var a podArgs
	if err := types.LoadArgs(args, &a); err != nil {
		return podArgs{}, badArgs(args, strings.TrimPrefix(err.Error(), "ARGS: "))
	}
	if err := a.check(args); err != nil {
		return podArgs{}, err
	}
	return a, nil
}

// parseIPAMArgs is parseArgs for calls of an IPAM plugin.
func parseIPAMArgs(args string) (ipamArgs, error) {
	var a ipamArgs
	if err := types.LoadArgs(args, &a); err != nil {
		return ipamArgs{}, badArgs(args, strings.TrimPrefix(err.Error(), "ARGS: "))
	}
	return a, a.check(args)
}

func badArgs(args, text string) error {
	return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("CNI_ARGS %q: %s", args, text), "")
}

// check validates what was parsed from args.
func (a podArgs) check(args string) error {
	for _, v := range []types.UnmarshallableString{a.K8S_POD_NAMESPACE, a.K8S_POD_NAME, a.K8S_POD_UID} {
		if len(v) > 253 || strings.ContainsFunc(string(v), notInNames) {
			return badArgs(args, fmt.Sprintf("%q is not a valid Kubernetes name", string(v)))
		}
	}
	if (a.K8S_POD_NAME == "") != (a.K8S_POD_NAMESPACE == "") {
		return badArgs(args, "K8S_POD_NAME and K8S_POD_NAMESPACE must be set together")
	}
	return nil
}

func notInNames(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '.' || r == '_')
}
