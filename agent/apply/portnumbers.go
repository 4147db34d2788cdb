package apply

import (
	"cmp"
	"maps"

	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
)

// portNumbers are the OpenFlow port numbers that flows take from OVSDB, by port.
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

// numbersFor are those of the wanted ports: ports of deleted pods are removed after their flows.
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
