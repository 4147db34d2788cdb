package bed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// BridgeCNI installs the reference bridge plugin on every node, with routes between the nodes: the baseline of
// measurements. It waits for the nodes' podCIDRs.
func (b *Bed) BridgeCNI(ctx context.Context) error {
	client, err := b.Client()
	if err != nil {
		return err
	}
	var nodes []corev1.Node
	const often, limit = 100 * time.Millisecond, time.Minute
	err = wait.PollUntilContextTimeout(ctx, often, limit, true, func(ctx context.Context) (bool, error) {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, nil // it may be unreachable
		}
		nodes = list.Items
		for _, n := range nodes {
			if n.Spec.PodCIDR == "" {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for podCIDRs: %w", err)
	}
	for _, own := range nodes {
		h := b.Host(own.Name)
		if err := writeBridgeConflist(h, own.Spec.PodCIDRs); err != nil {
			return fmt.Errorf("the network of %s: %w", own.Name, err)
		}
		for _, peer := range nodes {
			if peer.Name == own.Name {
				continue
			}
			if err := h.Do(func() error { return routesTo(peer) }); err != nil {
				return fmt.Errorf("routes from %s to %s: %w", own.Name, peer.Name, err)
			}
		}
	}
	return nil
}

const bridgeConflist = "/etc/cni/net.d/10-bridge.conflist"

func writeBridgeConflist(h host.Host, cidrs []string) error {
	var ranges [][]map[string]string
	var routes []map[string]string
	for _, cidr := range cidrs {
		ranges = append(ranges, []map[string]string{{"subnet": cidr}})
		everything := "0.0.0.0/0"
		if strings.Contains(cidr, ":") {
			everything = "::/0"
		}
		routes = append(routes, map[string]string{"dst": everything})
	}
	data, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "bridge", "plugins": []any{
		map[string]any{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
			"ipam": map[string]any{"type": "host-local", "ranges": ranges, "routes": routes}},
		map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
	}})
	if err != nil {
		return err
	}
	// The runtime watches the directory: it must not read an incomplete file.
	file := h.Private(bridgeConflist)
	if err := os.WriteFile(file+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// routesTo routes the podCIDRs of a peer to its addresses.
func routesTo(peer corev1.Node) error {
	for _, cidr := range peer.Spec.PodCIDRs {
		_, dst, err := net.ParseCIDR(cidr)
		if err != nil {
			return err
		}
		via, err := internalIP(peer, dst.IP.To4() != nil)
		if err != nil {
			return err
		}
		if err := netlink.RouteReplace(&netlink.Route{Dst: dst, Gw: via.AsSlice()}); err != nil {
			return fmt.Errorf("%s by %s: %w", dst, via, err)
		}
	}
	return nil
}

func internalIP(node corev1.Node, v4 bool) (netip.Addr, error) {
	for _, a := range node.Status.Addresses {
		addr, err := netip.ParseAddr(a.Address)
		if a.Type == corev1.NodeInternalIP && err == nil && addr.Is4() == v4 {
			return addr, nil
		}
	}
	return netip.Addr{}, errors.New("it has no InternalIP of that family")
}
