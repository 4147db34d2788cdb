package lab

import (
	"errors"
	"fmt"
	"io"

	"bytes"

	yamlv3 "go.yaml.in/yaml/v3"

	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// defaultAPIPort is the port of the agent's /readyz unless its config has another one.
const defaultAPIPort = 10350

// manifestsDir is the path of the lab's manifests on a node.
const manifestsDir = "/etc/fairlead/manifests"

// allocationsDir is the path on a node of the allocations that all nodes of the lab share: the agents' default for
// ipam.allocationsDir.
const allocationsDir = "/var/lib/fairlead/allocations"

// agentConfigFor is the part of the config that every agent in the lab needs.
func agentConfigFor(o Options) map[string]any {
	config := map[string]any{"ovsDatapathType": string(o.Datapath)}
	if o.Mode == underlay.Bridge {
		config["enableBridgingMode"] = true
		config["uplink"] = map[string]any{"mode": o.Uplink}
	}
	if o.Cluster == Kube {
		config["clientConnection"] = map[string]any{"kubeconfig": agentKubeconfig}
		for _, cidr := range o.IPFamily.ServiceCIDRs() {
			key := "serviceCIDR"
			if cidr.Addr().Is6() {
				key = "serviceCIDRv6"
			}
			config[key] = cidr.String()
		}
	} else {
		config["manifestsDir"] = manifestsDir
	}
	return config
}

// mergeConfig merges the user's YAML into base: mappings are merged, everything else is replaced, and null removes a
// key. The keys are validated by the agent.
func mergeConfig(base map[string]any, user []byte) (map[string]any, error) {
	docs := yamlv3.NewDecoder(bytes.NewReader(user))
	var over map[string]any
	err := docs.Decode(&over)
	if errors.Is(err, io.EOF) { // an empty file
		return base, nil
	}
	if err != nil {
		return nil, fmt.Errorf("not a YAML mapping of the agent's config keys: %w", err)
	}
	if err := docs.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("has more than one YAML document")
	}
	return merge(base, over), nil
}

func merge(base, over map[string]any) map[string]any {
	out := map[string]any{}
	for k, v := range base {
		out[k] = v
	}
	for k, v := range over {
		below, isMap := v.(map[string]any)
		before, wasMap := out[k].(map[string]any)
		switch {
		case v == nil:
			delete(out, k)
		case isMap && wasMap:
			out[k] = merge(before, below)
		default:
			out[k] = v
		}
	}
	return out
}

// apiPort is the port of /readyz in the merged config.
func apiPort(config map[string]any) int {
	if port, ok := config["apiPort"].(int); ok {
		return port
	}
	return defaultAPIPort
}
