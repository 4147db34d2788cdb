// Package nodestate reads the state of pods on a node of a lab (addresses, interfaces, ports, flows, network
// namespaces) and lists how it differs from what the node's pods need. It reads the system's state, not the agent's:
// state belongs to a pod by the pod's names, numbers and addresses.
package nodestate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/ipam/hostlocal"
	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// Bridge is the bridge of a lab's nodes.
const Bridge = "br-int"

// State is the state of pods on a node.
type State struct {
	// Leases are the files of host-local: address and container ID.
	Leases map[string]string
	// Ports are those of the bridge that have the name of a pod's port, by name, with their OpenFlow numbers.
	Ports map[string]int
	// Veths are the interfaces with such a name.
	Veths []string
	// Netns are the paths of the network namespaces that a runtime pinned on the node.
	Netns []string
	// Flows are all of the bridge, without counters and cookies.
	Flows []string
}

// Pod is an expected pod of the node.
type Pod struct {
	Name, ContainerID, Netns string
	IPs                      []netip.Addr
	MAC                      api.MAC
}

// HostIf is the name of the pod's port and of the veth behind it.
func (p Pod) HostIf() string { return link.HostName(p.ContainerID, "eth0") }

// Read reads the state of the node.
func Read(ctx context.Context, h host.Host) (State, error) {
	var s State
	var errs []error
	var err error
	s.Leases, err = leases(h)
	errs = append(errs, err)
	s.Ports, err = ports(ctx, h)
	errs = append(errs, err)
	s.Veths, err = Veths(h)
	errs = append(errs, err)
	s.Flows, err = flows(ctx, h)
	errs = append(errs, err)
	entries, err := os.ReadDir(h.Private("/run/netns"))
	errs = append(errs, err)
	for _, e := range entries {
		s.Netns = append(s.Netns, filepath.Join("/run/netns", e.Name()))
	}
	return s, errors.Join(errs...)
}

func leases(h host.Host) (map[string]string, error) {
	dir := h.Private(hostlocal.DefaultDir)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	out := map[string]string{}
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err != nil {
			continue // boot-id, lock, the last allocated address
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // released meanwhile
		}
		owner, _, _ := strings.Cut(string(content), "\r\n")
		if err != nil { // not even a file
			owner = err.Error()
		}
		out[e.Name()] = owner
	}
	return out, nil
}

// Veths lists the interfaces on the node whose names are those of pods' interfaces.
func Veths(h host.Host) (names []string, err error) {
	err = h.Do(func() error {
		all, err := net.Interfaces()
		for _, i := range all {
			if IsPodPort(i.Name) {
				names = append(names, i.Name)
			}
		}
		return err
	})
	return names, err
}

// IsPodPort reports whether a name has the form of link.HostName: "fl" and 13 hexadecimal digits.
func IsPodPort(name string) bool { return podPort.MatchString(name) }

var podPort = regexp.MustCompile(`^fl[0-9a-f]{13}$`)

// table is the output of "ovs-vsctl --format=json".
type table struct{ Data [][]any }

func ports(ctx context.Context, h host.Host) (map[string]int, error) {
	out, err := run(ctx, h, "ovs-vsctl", "--timeout=10", "--format=json", "--columns=name,ofport", "list", "Interface")
	if err != nil {
		return nil, err
	}
	var t table
	if err := json.Unmarshal([]byte(out), &t); err != nil {
		return nil, fmt.Errorf("reading ovs-vsctl's answer: %w", err)
	}
	numbers := map[string]int{}
	for _, row := range t.Data {
		name, _ := row[0].(string)
		if IsPodPort(name) {
			number, _ := row[1].(float64) // an empty set has no number
			numbers[name] = int(number)
		}
	}
	return numbers, nil
}

func flows(ctx context.Context, h host.Host) ([]string, error) {
	out, err := run(ctx, h, "ovs-ofctl", "-O", "OpenFlow15", "--no-stats", "dump-flows", Bridge)
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(out) {
		if _, flow, ok := strings.Cut(strings.TrimSpace(line), ", "); ok && strings.Contains(line, "cookie=") &&
			!strings.Contains(flow, "priority=65535,pkt_mark=") { // these change whenever other flows do
			all = append(all, flow)
		}
	}
	slices.Sort(all)
	return all, nil
}

// run runs a program on the node and returns its standard output.
func run(ctx context.Context, h host.Host, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := h.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%s on %s: %w: %s", argv[0], h.Name, err, errOut.String())
	}
	return out.String(), nil
}
