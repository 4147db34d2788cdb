package podcidr

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// allocatorNames are the names of the allocator in --controllers: the current one, and the one before Kubernetes 1.28.
func allocatorNames() []string { return []string{"node-ipam-controller", "nodeipam"} }

// defaultMask is the node mask if no flag sets it.
func defaultMask(cluster netip.Prefix) int {
	if cluster.Addr().Is4() {
		return 24
	}
	return 64
}

// flags are those of a command line, by name. If one is repeated, the last one counts. Underscores count as dashes, as
// in kube-controller-manager's parser.
type flags map[string]string

// parseCommand parses "--name=value", "--name value" and "--name" (true). A shell command in one argument is split at
// its spaces.
func parseCommand(command []string) flags {
	var words []string
	for _, arg := range command {
		if strings.HasPrefix(arg, "-") {
			words = append(words, arg)
			continue
		}
		words = append(words, strings.Fields(arg)...)
	}
	out := flags{}
	for i, w := range words {
		name, ok := strings.CutPrefix(w, "--")
		if !ok {
			continue
		}
		name, value, valued := strings.Cut(name, "=")
		if !valued {
			value = "true"
			if i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") && name != "allocate-node-cidrs" {
				value = words[i+1]
			}
		}
		out[strings.ReplaceAll(name, "_", "-")] = strings.Trim(value, `"'`)
	}
	return out
}

// allocates reports whether the flags make kube-controller-manager assign podCIDRs, and why not.
func (f flags) allocates() (Answer, string) {
	on, err := strconv.ParseBool(f["allocate-node-cidrs"])
	controllers := strings.Split(f["controllers"], ",")
	named := func(prefix string) bool {
		return slices.ContainsFunc(allocatorNames(), func(n string) bool { return slices.Contains(controllers, prefix+n) })
	}
	switch {
	case f["allocate-node-cidrs"] == "":
		return No, "its command has no --allocate-node-cidrs"
	case err != nil || !on:
		return No, "its command has --allocate-node-cidrs=" + f["allocate-node-cidrs"]
	case f["controllers"] != "" && (named("-") || !named("") && !slices.Contains(controllers, "*")):
		return No, fmt.Sprintf("its command has --controllers=%s, which excludes %s", f["controllers"], allocatorNames()[0])
	case f["cidr-allocator-type"] != "" && f["cidr-allocator-type"] != "RangeAllocator":
		return Unknown, ""
	}
	return Yes, ""
}

// ranges are --cluster-cidr and the masks that belong to it.
func (f flags) ranges() ([]Range, error) {
	cidrs, err := parseCIDRs(f["cluster-cidr"])
	if err != nil {
		return nil, fmt.Errorf("--cluster-cidr: %w", err)
	}
	var out []Range
	for _, c := range cidrs {
		name, mask := "node-cidr-mask-size-ipv4", defaultMask(c)
		if c.Addr().Is6() {
			name = "node-cidr-mask-size-ipv6"
		}
		if len(cidrs) == 1 && f.has("node-cidr-mask-size") {
			name = "node-cidr-mask-size"
		}
		if f.has(name) {
			if mask, err = strconv.Atoi(f[name]); err != nil {
				return nil, fmt.Errorf("--%s=%s is not a number", name, f[name])
			}
		}
		out = append(out, Range{Cluster: c, Mask: mask})
		if _, err := newGrid(out[len(out)-1]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// has reports whether a flag is set; 0 stands for the default.
func (f flags) has(name string) bool { return f[name] != "" && f[name] != "0" }

// parseCIDRs parses one CIDR, or one of each family separated by a comma; none in an empty list.
func parseCIDRs(list string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range strings.Split(list, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("%q is not a CIDR", s)
		}
		if slices.ContainsFunc(out, func(q netip.Prefix) bool { return q.Addr().Is4() == p.Addr().Is4() }) {
			return nil, errors.New("two CIDRs of the same family in " + list)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}
