package nat

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// RemoveAll removes all of Fairlead's chains, in both iptables backends if the node has both: "iptables" may have been
// switched since they were created. It returns a description of what it changed; with dryRun, of what it would change.
func RemoveAll(ctx context.Context, dryRun bool) (changes []string, err error) {
	var errs []error
	for _, form := range []string{"", "-nft", "-legacy"} {
		for _, f := range families() {
			if form == "-legacy" && !legacyInUse(f) {
				continue // reading would load its tables into the kernel
			}
			path, err := exec.LookPath(f.program + form)
			if err != nil {
				continue
			}
			f.program, f.restore, f.path, f.dryRun = f.program+form, f.program+form+"-restore", path, dryRun
			if form == "" {
				f.restore = f.program + "-restore"
			}
			t := new(Tables)
			for _, c := range (Desired{}).chains(f) {
				did, err := t.apply(ctx, f, c)
				changes = append(changes, did...)
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", f.program, err))
				}
			}
		}
		if dryRun && len(changes) > 0 {
			break // the other names list the same chains again
		}
	}
	return changes, errors.Join(errs...)
}

func legacyInUse(f family) bool {
	file := "/proc/net/ip_tables_names"
	if f.is6 {
		file = "/proc/net/ip6_tables_names"
	}
	tables, err := os.ReadFile(file)
	return err == nil && strings.TrimSpace(string(tables)) != ""
}
