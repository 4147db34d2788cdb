package apply

import (
	"cmp"
	"maps"

	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
)

// portNumbers are what flows take from OVSDB: OpenFlow port numbers, by port.
type portNumbers map[string]uint32

func numbersIn(obs ovsdb.Observed) portNumbers {
	out := portNumbers{}
	for _, p := range []ovsdb.Port{obs.Gateway, obs.Tunnel, obs.Uplink} {
		out[p.Name] = p.OFPort
	}
	for _, p := range obs.Pods {
		out[p.HostIf] = cmp.Or(p.OFPort, p.Requested)
	}
	return out
}

// numbersFor are those of what is wanted: ports of pods that are gone go after their flows.
func numbersFor(want ovsdb.Desired, obs ovsdb.Observed) portNumbers {
	out, pods := numbersIn(obs), map[string]bool{}
	for _, a := range want.Pods {
		pods[a.HostIf] = true
	}
	maps.DeleteFunc(out, func(port string, _ uint32) bool {
		return !pods[port] && port != obs.Gateway.Name && port != obs.Tunnel.Name && port != obs.Uplink.Name
	})
	return out
}
