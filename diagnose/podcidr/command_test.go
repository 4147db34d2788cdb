package podcidr

import (
	"reflect"
	"strings"
	"testing"
)

func TestCommand(t *testing.T) {
	for _, c := range []struct {
		command   string
		allocates Answer
		why       string
		ranges    string
		fails     string
	}{
		{"kube-controller-manager --allocate-node-cidrs=true --cluster-cidr=10.244.0.0/16", Yes, "", "10.244.0.0/16 cut into /24", ""},
		{"kube-controller-manager --allocate-node-cidrs --cluster-cidr 10.244.7.0/16 --node-cidr-mask-size 25", Yes, "", "10.244.0.0/16 cut into /25", ""},
		{"--allocate_node_cidrs=true --cluster_cidr=fd00::/56", Yes, "", "fd00::/56 cut into /64", ""},
		{"--cluster-cidr=10.0.0.0/8 --cluster-cidr=10.244.0.0/16 --allocate-node-cidrs=1", Yes, "", "10.244.0.0/16 cut into /24", ""},
		{"--allocate-node-cidrs=true --cluster-cidr=10.244.0.0/16,fd00::/56 --node-cidr-mask-size-ipv4=26 --node-cidr-mask-size-ipv6=72",
			Yes, "", "10.244.0.0/16 cut into /26 fd00::/56 cut into /72", ""},
		{"--cluster-cidr=10.244.0.0/16", No, "no --allocate-node-cidrs", "10.244.0.0/16 cut into /24", ""},
		{"--allocate-node-cidrs=false", No, "--allocate-node-cidrs=false", "", ""},
		{"--allocate-node-cidrs=true --controllers=*,-nodeipam", No, "excludes node-ipam-controller", "", ""},
		{"--allocate-node-cidrs=true --controllers=*,-node-ipam-controller", No, "excludes node-ipam-controller", "", ""},
		{"--allocate-node-cidrs=true --controllers=deployment-controller", No, "excludes", "", ""},
		{"--allocate-node-cidrs=true --controllers=*,bootstrapsigner,tokencleaner", Yes, "", "", ""},
		{"--allocate-node-cidrs=true --cidr-allocator-type=CloudAllocator", Unknown, "", "", ""},
		{"--allocate-node-cidrs=true --cluster-cidr=10.244.0.0/16,10.245.0.0/16", Yes, "", "", "two CIDRs of the same family"},
		{"--allocate-node-cidrs=true --cluster-cidr=fd00::/40", Yes, "", "", "at most 16"},
		{"--allocate-node-cidrs=true --cluster-cidr=10.244.0.0/25", Yes, "", "", "no room for one /24"},
		{"--allocate-node-cidrs=true --cluster-cidr=all", Yes, "", "", "not a CIDR"},
	} {
		for _, command := range [][]string{strings.Fields(c.command), {"/bin/sh", "-c", "exec " + c.command + " 2>&1"}} {
			f := parseCommand(command)
			if got, why := f.allocates(); got != c.allocates || !strings.Contains(why, c.why) {
				t.Errorf("%q: allocates %v, %q", command, got, why)
			}
			ranges, err := f.ranges()
			var got []string
			for _, r := range ranges {
				got = append(got, r.String())
			}
			if c.fails == "" && (err != nil || strings.Join(got, " ") != c.ranges) ||
				c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
				t.Errorf("%q: ranges %v, %v", command, got, err)
			}
		}
	}
}

const kubeadm4 = `apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
controllerManager:
  extraArgs:
  - {name: node-cidr-mask-size, value: "26"}
networking: {podSubnet: 10.244.0.0/16, serviceSubnet: 10.96.0.0/12}
`

func TestKubeadm(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		want   flags
	}{
		"v1beta4": {kubeadm4, flags{"allocate-node-cidrs": "true", "cluster-cidr": "10.244.0.0/16",
			"service-cluster-ip-range": "10.96.0.0/12", "node-cidr-mask-size": "26"}},
		"v1beta3": {"controllerManager: {extraArgs: {node-cidr-mask-size: \"25\"}}\nnetworking: {podSubnet: \"10.0.0.0/16,fd00::/56\"}",
			flags{"allocate-node-cidrs": "true", "cluster-cidr": "10.0.0.0/16,fd00::/56", "service-cluster-ip-range": "",
				"node-cidr-mask-size": "25"}},
		"without --pod-network-cidr": {"networking: {serviceSubnet: 10.96.0.0/12}", flags{}},
	} {
		k, err := parseKubeadm(c.config)
		if err != nil || !reflect.DeepEqual(k.command(), c.want) {
			t.Errorf("%s: %v, %v", name, k.command(), err)
		}
	}
	for _, bad := range []string{"networking: {podSubnet: all}", "a: [", "networking: {serviceSubnet: 10.0.0.0/33}"} {
		if _, err := parseKubeadm(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// Whatever a command contains, the parsed values are valid for computation.
func FuzzCommand(f *testing.F) {
	f.Add("kube-controller-manager --allocate-node-cidrs --cluster-cidr 10.244.0.0/16,fd00::/56 --node-cidr-mask-size-ipv4=25")
	f.Add("--cluster-cidr=0.0.0.0/0 --node-cidr-mask-size=-1")
	f.Fuzz(func(t *testing.T, command string) { computable(t, parseCommand([]string{command})) })
}

func FuzzKubeadm(f *testing.F) {
	f.Add(kubeadm4)
	f.Add("controllerManager: {extraArgs: {node-cidr-mask-size: 25}}\nnetworking: {podSubnet: 10.0.0.0/9}")
	f.Fuzz(func(t *testing.T, config string) {
		if k, err := parseKubeadm(config); err == nil {
			computable(t, k.command())
		}
	})
}

func computable(t *testing.T, f flags) {
	f.allocates()
	ranges, err := f.ranges()
	if err != nil {
		return
	}
	grids, err := start(ranges, nil, nil)
	if err != nil {
		t.Fatalf("%v: %v", ranges, err)
	}
	for _, g := range grids {
		if g.Free() != g.Blocks() || g.Blocks() == 0 || len(g.Next(2)) == 0 {
			t.Fatalf("%v has %d blocks, %d free", g.Range, g.Blocks(), g.Free())
		}
	}
}
