package host

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Mount is one line of mountinfo, proc(5).
type Mount struct {
	// Target is the mount point, as the calling thread sees it.
	Target string
	// Type is the file system type, such as tmpfs or nsfs.
	Type string
	// Source is the device, or the name that the mount was created with.
	Source string
}

// Mounts lists the mounts visible to the calling thread.
func Mounts() ([]Mount, error) {
	data, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("listing the mounts: %w", err)
	}
	return parseMountinfo(string(data))
}

func parseMountinfo(text string) ([]Mount, error) {
	var mounts []Mount
	for line := range strings.Lines(text) {
		// 36 35 98:0 /root /target opts optional... - type source superopts
		before, after, ok := strings.Cut(line, " - ")
		head, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(head) < 6 || len(tail) < 2 {
			return nil, fmt.Errorf("mountinfo line %q has an unknown format", line)
		}
		mounts = append(mounts, Mount{Target: unescape(head[4]), Type: tail[0], Source: unescape(tail[1])})
	}
	return mounts, nil
}

// unescape decodes the octal escapes for blank, tab, newline and backslash.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
