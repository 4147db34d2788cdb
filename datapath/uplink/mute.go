package uplink

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// muteTable is Fairlead's by its name. See mute.
const muteTable = "fairlead-uplink"

// mute has the kernel drop what the NIC receives. The userspace datapath receives copies of frames, and without this
// the host would get each frame twice: from the NIC and from br-uplink. Frames with a VLAN tag pass, to VLAN interfaces
// on the NIC.
func mute(ctx context.Context, nic string) error {
	return nft(ctx, fmt.Sprintf(`add table netdev %[1]s
delete table netdev %[1]s
add table netdev %[1]s
add chain netdev %[1]s mute { type filter hook ingress device %[2]s priority 0; policy drop; }
add rule netdev %[1]s mute ether type { 8021q, 8021ad } accept
`, muteTable, strconv.Quote(nic)))
}

func unmute(ctx context.Context) error {
	return nft(ctx, fmt.Sprintf("add table netdev %[1]s\ndelete table netdev %[1]s\n", muteTable))
}

func nft(ctx context.Context, script string) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft (package nftables): %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// muted reports whether the table exists, for any device: undoing means removing it.
func muted() (here bool, text string) {
	out, err := exec.Command("nft", "list", "table", "netdev", muteTable).Output()
	return err == nil, string(out) // without nft there is no table either
}
