package house

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// dependency is a module that go.mod requires directly.
type dependency struct{ module, licence, reason string }

func dependencies() []dependency {
	const apache, mit, bsd = "Apache-2.0", "MIT", "BSD-3-Clause"
	return []dependency{
		{"antrea.io/libOpenflow", apache, "OpenFlow 1.5 messages"},
		{"antrea.io/ofnet", apache, "flows as messages of it, and the names of its errors"},
		{"github.com/cilium/ebpf", mit, "eBPF: the uplink's mode steer"},
		{"github.com/containernetworking/cni", apache, "the CNI specification's types, skel and libcni"},
		{"github.com/containernetworking/plugins", apache, "host-local's allocator and disk store"},
		{"github.com/coreos/go-iptables", apache, "the masquerade's rules"},
		{"github.com/fsnotify/fsnotify", bsd, "to follow the directory of manifests"},
		{"github.com/go-logr/logr", apache, "the logger that is passed in"},
		{"github.com/gopacket/gopacket", bsd, "pcapng, the file format of captured packets"},
		{"github.com/moby/ipvs", apache, "tests: a Service of kube-proxy in mode ipvs"},
		{"github.com/ovn-org/libovsdb", apache, "OVSDB"},
		{"github.com/prometheus/client_golang", apache, "/metrics"},
		{"github.com/prometheus/client_model", apache, "what a metric is, for who reads one"},
		{"github.com/safchain/ethtool", apache, "checksum offload"},
		{"github.com/spf13/cobra", apache, "the command lines"},
		{"github.com/vishvananda/netlink", apache, "links, addresses, routes"},
		{"github.com/vishvananda/netns", apache, "a network namespace with a name, from which other nodes are probed"},
		{"go.yaml.in/yaml/v3", mit, "the config file, with the line of every key"},
		{"golang.org/x/net", bsd, "the assembler of filters of packet sockets"},
		{"golang.org/x/sync", bsd, "errgroup: goroutines that end together"},
		{"golang.org/x/sys", bsd, "system calls"},
		{"golang.org/x/tools", bsd, "txtar, the format of golden test cases"},
		{"helm.sh/helm/v3", apache, "tests: what Helm makes of the chart"},
		{"k8s.io/api", apache, "Node, Pod, Namespace"},
		{"k8s.io/apimachinery", apache, "the reader of YAML documents"},
		{"k8s.io/client-go", apache, "the Kubernetes API: informers, Events"},
		{"k8s.io/klog/v2", apache, "the log's format"},
		{"k8s.io/streaming", apache, "why the API server has refused a stream, and, for tests, a kubelet that runs commands"},
		{"sigs.k8s.io/json", apache, "manifests, strict about keys and their case"},
		{"sigs.k8s.io/network-policy-api", apache, "ClusterNetworkPolicy"},
		{"sigs.k8s.io/yaml", apache, "Kubernetes manifests"},
	}
}

// Every dependency is chosen: its licence is compatible with ours, it is well maintained, and our own code would be
// worse.
func TestDependenciesAreChosen(t *testing.T) {
	goMod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	direct := map[string]bool{}
	requirement := regexp.MustCompile(`^(?:require\s+|\t)(\S+) v\S+$`)
	for _, line := range strings.Split(string(goMod), "\n") {
		if m := requirement.FindStringSubmatch(line); m != nil {
			direct[m[1]] = true
		}
	}
	var modules []string
	for _, d := range dependencies() {
		if !direct[d.module] {
			t.Errorf("go.mod no longer requires %s directly: take it off the list", d.module)
		}
		delete(direct, d.module)
		modules = append(modules, d.module)
	}
	for module := range direct {
		t.Errorf("go.mod requires %s, which is not on the list of test/house: say its licence and why we need it", module)
	}
	checkLicences(t, modules)
}

// checkLicences reads each module's licence in the module cache.
func checkLicences(t *testing.T, modules []string) {
	list := exec.Command("go", append([]string{"list", "-m", "-f", "{{.Path}} {{.Dir}}"}, modules...)...)
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatalf("%v: %v", list, err)
	}
	dirs := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		module, dir, _ := strings.Cut(line, " ")
		dirs[module] = dir
	}
	says := map[string]string{
		"Apache-2.0":   "Apache License",
		"MIT":          "Permission is hereby granted, free of charge",
		"BSD-3-Clause": "Redistribution and use in source and binary forms",
	}
	for _, d := range dependencies() {
		found := false
		files, _ := filepath.Glob(filepath.Join(dirs[d.module], "LICEN[SC]E*")) // the pattern is valid
		for _, file := range files {
			text, err := os.ReadFile(file)
			found = found || err == nil && strings.Contains(string(text), says[d.licence])
		}
		if !found {
			t.Errorf("%s: found no licence %s in %q", d.module, d.licence, dirs[d.module])
		}
	}
}
