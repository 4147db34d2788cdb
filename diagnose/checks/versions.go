package checks

import (
	"context"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/diagnose/versions"
)

// versions finds software that is too old, by what the Nodes report.
func (o Options) versions(ctx context.Context) ([]report.Finding, error) {
	v := cluster.Read(ctx, o.Client, cluster.Nodes)
	if err := v.Missing(cluster.Nodes); err != nil {
		return nil, err
	}
	var out []report.Finding
	for _, r := range v.Runs() {
		out = append(out, tooOld(CheckVersions, r.Software, r.Version, r.Nodes, "status.nodeInfo of the Nodes")...)
	}
	return out, nil
}

// version finds an Open vSwitch that is too old. One that does not answer is a different finding.
func (n *NodeProbe) version(ctx context.Context) []report.Finding {
	version, err := vswitchd.Version(ctx, n.Config.OVSRunDir)
	if err != nil {
		return nil
	}
	return tooOld(CheckOVS, versions.OpenVSwitch, version, nil, "ovs-appctl version")
}

func tooOld(check string, software versions.Software, version string, nodes []string, seen string) []report.Finding {
	oldest := versions.Of(software, version, time.Now()).TooOld
	if oldest == "" {
		return nil
	}
	return []report.Finding{{Check: check, Kind: "version-too-old", Severity: report.Warning, About: nodes,
		Cause:    string(software) + " " + version + " is too old: Fairlead supports " + oldest + " and newer",
		Evidence: []string{seen},
		Remedies: []report.Remedy{{Text: "Upgrade " + string(software) + " to " + oldest + " or newer"}}}}
}
