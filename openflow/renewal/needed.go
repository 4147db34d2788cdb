package renewal

import "fmt"

// Needed reports whether the userspace datapath of this version of Open vSwitch, such as 3.1.0, may modify the wrong
// megaflow: versions before 3.5 may, and an unknown version counts as such.
func Needed(version string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n < 2 {
		return true
	}
	return major < 3 || major == 3 && minor < 5
}
