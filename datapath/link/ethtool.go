package link

import (
	"fmt"
	"strings"

	"github.com/safchain/ethtool"
)

// txChecksums lists the kinds of checksums that the device is left to compute, as ethtool(8) names them; with off it is
// told to compute none, and the kernel switches segmentation offload off with that.
func txChecksums(ifName string, off bool) (on []string, err error) {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return nil, fmt.Errorf("opening a socket for ethtool: %w", err)
	}
	defer e.Close()
	features, err := e.Features(ifName)
	if err != nil {
		return nil, fmt.Errorf("reading tx checksum offload of %s: %w", ifName, err)
	}
	change := map[string]bool{}
	for name, is := range features {
		if is && strings.HasPrefix(name, "tx-checksum-") {
			on, change[name] = append(on, name), false
		}
	}
	if off && len(on) > 0 {
		if err := e.Change(ifName, change); err != nil {
			return nil, fmt.Errorf("switching tx checksum offload of %s off: %w", ifName, err)
		}
	}
	return on, nil
}
