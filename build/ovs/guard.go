// Package ovs holds what runs beside Open vSwitch on a node, for tests to start.
// README.md has the rest.
package ovs

import _ "embed"

// Guard is the guard of ovs-vswitchd, a program for sh(1).
//
//go:embed fairlead-ovs-guard
var Guard string

// UplinkBoot has a node start with its NIC detached, a program for sh(1).
//
//go:embed fairlead-uplink-boot
var UplinkBoot string
