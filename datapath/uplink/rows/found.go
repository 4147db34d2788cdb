package rows

import (
	"context"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/datapath/internal/ovsop"
)

// Found is what the database has of an uplink without a journal.
type Found struct {
	// Foreign: there is a bridge of that name without Fairlead's mark. Ours: with it; then the rest is as in Bridge, and
	// NICs are the ports other than the bridge's own and its patch port.
	Foreign, Ours         bool
	Datapath, MAC, BootID string
	NICs                  []string
}

// FindBridge looks for the bridge called name, whose patch port is patch.
func (db DB) FindBridge(ctx context.Context, name, patch string) (Found, error) {
	results, err := db.transact(ctx,
		ovsop.Select("Bridge", ovsop.Is("name", name), "ports", "external_ids", "datapath_type", "other_config"),
		ovsop.Select("Port", nil, "_uuid", "name"))
	if err != nil {
		return Found{}, fmt.Errorf("looking for bridge %s: %w", name, err)
	}
	bridge := first(results[0])
	if bridge == nil {
		return Found{}, nil
	}
	ids := textMap(bridge, "external_ids")
	if ids[markKey] != markUplink {
		return Found{Foreign: true}, nil
	}
	f := Found{Ours: true, Datapath: datapath(text(bridge, "datapath_type")), BootID: ids[bootKey],
		MAC: textMap(bridge, "other_config")["hwaddr"]}
	ports := refs(bridge, "ports")
	for _, row := range results[1].Rows {
		if n := text(row, "name"); slices.Contains(ports, uuid(row)) && n != name && n != patch {
			f.NICs = append(f.NICs, n)
		}
	}
	return f, nil
}
