package nat

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"reflect"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// cleanRead is a read of the rules that found them all as wanted. Reading them starts dozens of processes, which is
// unnecessary while the kernel's rules do not change.
type cleanRead struct {
	valid      bool
	generation uint32
	wanted     Desired
}

func (l cleanRead) matches(generation uint32, wanted Desired) bool {
	return l.valid && l.generation == generation && reflect.DeepEqual(l.wanted, wanted)
}

// generation returns the generation ID of the nftables rules of this network namespace. Each rule change increments it.
// It is available only where all rules are nftables rules: legacy tables have none.
func (t *Tables) generation(ctx context.Context) (generation uint32, known bool) {
	for _, f := range families() {
		_, err := t.find(ctx, f)
		if errors.Is(err, exec.ErrNotFound) {
			continue // and there are no rules
		}
		if err != nil || !t.programs[f.program].nft {
			return 0, false
		}
	}
	generation, err := nftGeneration()
	return generation, err == nil
}

// nftGeneration queries the kernel (NFT_MSG_GETGEN of linux/netfilter/nf_tables.h).
func nftGeneration() (uint32, error) {
	const subsystem = unix.NFNL_SUBSYS_NFTABLES << 8
	req := nl.NewNetlinkRequest(subsystem|unix.NFT_MSG_GETGEN, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: unix.NFNETLINK_V0})
	messages, err := req.Execute(unix.NETLINK_NETFILTER, subsystem|unix.NFT_MSG_NEWGEN)
	if err != nil {
		return 0, fmt.Errorf("reading the generation of nftables rules: %w", err)
	}
	for _, m := range messages {
		if len(m) < nl.SizeofNfgenmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofNfgenmsg:])
		if err != nil {
			return 0, fmt.Errorf("reading the generation of nftables rules: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type&nl.NLA_TYPE_MASK == unix.NFTA_GEN_ID && len(a.Value) == 4 {
				return binary.BigEndian.Uint32(a.Value), nil
			}
		}
	}
	return 0, errors.New("the kernel did not report the generation of nftables rules")
}
