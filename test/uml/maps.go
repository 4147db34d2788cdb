package uml

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// mapsFile is how many mappings a process of the host may have: sysctl vm.max_map_count.
const mapsFile = "/proc/sys/vm/max_map_count"

// maxMaps is what a guest needs: in the worst case each page of a process in it is a mapping of its own. With the
// kernel's default, 65530, an API server of 256 MB faulted on its next page forever: the guest's kernel does not notice
// that the host refuses a mapping. Some distributions have this value as their default.
const maxMaps = 1 << 20

// moreMaps raises the limit in file if it is too low, and writes to note that it did, or the remedy if it is not
// permitted to. It is the only setting of the machine that a guest changes.
func moreMaps(file string, note io.Writer) {
	text, err := os.ReadFile(file)
	if err != nil {
		return // a kernel without limit
	}
	now, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || now >= maxMaps {
		return
	}
	const asked = "sysctl vm.max_map_count: %d is too few for large programs in User-Mode Linux, "
	if err := os.WriteFile(file, []byte(strconv.Itoa(maxMaps)), 0o644); err != nil {
		fmt.Fprintf(note, asked+"which may hang. As root: sysctl -w vm.max_map_count=%d (%v)\n", now, maxMaps, err)
		return
	}
	fmt.Fprintf(note, asked+"now %d\n", now, maxMaps)
}
