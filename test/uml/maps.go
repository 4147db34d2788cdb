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

// mostMaps is what a guest needs: in the worst case each page of a process in it is a mapping of its own. With the
// kernel's default, 65530, an API server of 256 MB faulted at its next page without end: the guest's kernel takes no
// notice of what the host refuses. Some distributions have this as their default.
const mostMaps = 1 << 20

// moreMaps raises the limit in file where it is lower, the only setting of the machine that a guest changes, and writes
// that, or what to do where it may not, to note.
func moreMaps(file string, note io.Writer) {
	text, err := os.ReadFile(file)
	if err != nil {
		return // a kernel without limit
	}
	now, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || now >= mostMaps {
		return
	}
	const asked = "sysctl vm.max_map_count: %d is too few for large programs in User-Mode Linux, "
	if err := os.WriteFile(file, []byte(strconv.Itoa(mostMaps)), 0o644); err != nil {
		fmt.Fprintf(note, asked+"which may hang. As root: sysctl -w vm.max_map_count=%d (%v)\n", now, mostMaps, err)
		return
	}
	fmt.Fprintf(note, asked+"now %d\n", now, mostMaps)
}
