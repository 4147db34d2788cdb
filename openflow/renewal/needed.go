package renewal

import "fmt"

// Needed reports whether the userspace datapath of this version of Open vSwitch, such as 3.1.0, may modify another
// megaflow than it is to: those before 3.5 may, as may one of unknown version.
func Needed(version string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n < 2 {
		return true
	}
	return major < 3 || major == 3 && minor < 5
}
