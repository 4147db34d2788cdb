package link

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// Group is the interface group of our veths' host ends: "fl" as a number.
const Group = 0x666c

const (
	prefix = "fl"
	// maxName is IFNAMSIZ less the terminating zero byte.
	maxName = 15
)

// HostName is the name of the host end of a container's interface. It has 15 characters, the most that Linux allows, 13
// of them a hash, so two attachments of one node do not collide in practice.
func HostName(containerID, ifName string) string {
	sum := sha256.Sum256([]byte(containerID + "\x00" + ifName))
	return prefix + hex.EncodeToString(sum[:])[:maxName-len(prefix)]
}

// ours reports whether l is the host end of a veth that this package created.
func ours(l netlink.Link) bool { return inGroup(l, Group) }

// retired reports whether l was ours before Retire.
func retired(l netlink.Link) bool { return inGroup(l, Retired) }

func inGroup(l netlink.Link, group uint32) bool {
	return l.Type() == "veth" && l.Attrs().Group == group && strings.HasPrefix(l.Attrs().Name, prefix)
}

// Hosts lists the names of our veths' host ends, without those that are retired.
func Hosts() ([]string, error) {
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	var names []string
	for _, l := range links {
		if ours(l) {
			names = append(names, l.Attrs().Name)
		}
	}
	return names, nil
}

// checkName says what is wrong with an interface name; the kernel returns only "invalid argument" (dev_valid_name in
// net/core/dev.c).
func checkName(name string) error {
	bad := name == "" || len(name) > maxName || name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n\v\f\r")
	if bad {
		return fmt.Errorf("%q is not an interface name: 1 to 15 characters, none of them slash, colon or space", name)
	}
	return nil
}
