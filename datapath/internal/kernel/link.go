package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// FindLink returns nil if there is no link of that name.
func FindLink(name string) (netlink.Link, error) {
	l, err := Dump(func() (netlink.Link, error) { return netlink.LinkByName(name) })
	if gone := (netlink.LinkNotFoundError{}); errors.As(err, &gone) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking up interface %s: %w", name, err)
	}
	return l, nil
}
