package podcidr

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"sigs.k8s.io/yaml"
)

// kubeadm is what Fairlead needs of kubeadm's ClusterConfiguration, key ClusterConfiguration of ConfigMap
// kube-system/kubeadm-config.
type kubeadm struct {
	PodSubnet, ServiceSubnet []netip.Prefix
	// flags are kube-controller-manager's extraArgs.
	flags flags
}

// parseKubeadm parses the versions v1beta1 to v1beta4 of kubeadm.k8s.io.
func parseKubeadm(config string) (kubeadm, error) {
	var raw struct {
		Networking struct {
			PodSubnet     string `json:"podSubnet"`
			ServiceSubnet string `json:"serviceSubnet"`
		} `json:"networking"`
		ControllerManager struct {
			// A map until v1beta3, a list of names and values since v1beta4.
			ExtraArgs any `json:"extraArgs"`
		} `json:"controllerManager"`
	}
	if err := yaml.Unmarshal([]byte(config), &raw); err != nil {
		return kubeadm{}, fmt.Errorf("ClusterConfiguration: %w", err)
	}
	k := kubeadm{flags: flags{}}
	var err error
	if k.PodSubnet, err = parseCIDRs(raw.Networking.PodSubnet); err != nil {
		return kubeadm{}, fmt.Errorf("networking.podSubnet: %w", err)
	}
	if k.ServiceSubnet, err = parseCIDRs(raw.Networking.ServiceSubnet); err != nil {
		return kubeadm{}, fmt.Errorf("networking.serviceSubnet: %w", err)
	}
	switch args := raw.ControllerManager.ExtraArgs.(type) {
	case map[string]any:
		for name, value := range args {
			k.flags[name] = fmt.Sprint(value)
		}
	case []any:
		for _, a := range args {
			if pair, ok := a.(map[string]any); ok {
				k.flags[fmt.Sprint(pair["name"])] = fmt.Sprint(pair["value"])
			}
		}
	}
	return k, nil
}

// command are the flags with which kubeadm starts kube-controller-manager.
func (k kubeadm) command() flags {
	f := flags{}
	if len(k.PodSubnet) > 0 {
		f["allocate-node-cidrs"] = "true"
		f["cluster-cidr"] = report.Join(k.PodSubnet, ",")
		f["service-cluster-ip-range"] = report.Join(k.ServiceSubnet, ",")
	}
	maps.Copy(f, k.flags)
	return f
}
