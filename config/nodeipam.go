package config

import "fmt"

// nodeIPAM checks that the keys of the controller's NodeIPAM are consistent.
func (p *parser) nodeIPAM() {
	const key = "nodeIPAM.clusterCIDRs"
	c, at := p.config.NodeIPAM, p.at[key]
	if n := p.at["nodeIPAM.enableNodeIPAM"]; c.Enabled && len(c.ClusterCIDRs) == 0 && !p.faulty[key] {
		p.fail(n, "nodeIPAM.enableNodeIPAM", "true needs nodeIPAM.clusterCIDRs, from which podCIDRs are cut")
	}
	for i, cidr := range c.ClusterCIDRs {
		mask := c.MaskSizeIPv4
		if cidr.Addr().Is6() {
			mask = c.MaskSizeIPv6
		}
		if cidr.Bits() > mask {
			p.fail(at, key, fmt.Sprintf("%s has no room for one podCIDR of /%d: use a wider range, or a longer "+
				"nodeIPAM.nodeCIDRMaskSize", cidr, mask))
		}
		for _, other := range c.ClusterCIDRs[:i] {
			if cidr.Overlaps(other) {
				p.fail(at, key, fmt.Sprintf("%s and %s overlap: remove one", other, cidr))
			}
		}
	}
}
