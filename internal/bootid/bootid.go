// Package bootid identifies boots of the machine.
package bootid

import (
	"fmt"
	"os"
	"strings"
)

// Read reads the boot ID of random(4): a UUID that the kernel generates at each boot.
func Read() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the boot ID: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
