// Package ovs embeds programs that run beside Open vSwitch on a node, for tests. See README.md.
package ovs

import _ "embed"

// Guard is the guard of ovs-vswitchd, a program for sh(1).
//
//go:embed fairlead-ovs-guard
var Guard string

// UplinkBoot keeps Open vSwitch from attaching the NIC at boot; a program for sh(1).
//
//go:embed fairlead-uplink-boot
var UplinkBoot string
