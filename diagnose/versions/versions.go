// Package versions has the versions of Open vSwitch, Linux, container runtimes and Kubernetes that Fairlead was tested
// with, and until when their projects fix them. docs/install.md lists the tests.
package versions

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Software is the name of a software that has a version.
type Software string

// The software of a node, besides other container runtimes.
const (
	OpenVSwitch Software = "Open vSwitch"
	Linux       Software = "Linux"
	Containerd  Software = "containerd"
	CRIO        Software = "cri-o"
	Kubernetes  Software = "Kubernetes"
)

// release is the first two numbers of a version.
type release struct{ major, minor int }

func (r release) String() string { return fmt.Sprintf("%d.%d", r.major, r.minor) }

func (r release) compare(s release) int {
	return cmp.Or(cmp.Compare(r.major, s.major), cmp.Compare(r.minor, s.minor))
}

// known is what is known about a software. Releases before oldest are not supported; if that is the zero release, no
// release is known to fail. ends are the days on which projects end their fixes.
type known struct {
	oldest release
	tested []release
	ends   map[release]string
}

// table has only tested releases, and ends that the projects have announced.
func table() map[Software]known {
	return map[Software]known{
		OpenVSwitch: {release{3, 1}, []release{{3, 1}, {3, 5}}, map[release]string{{3, 1}: "2025-02-27"}},
		Linux:       {tested: []release{{6, 12}, {6, 18}, {7, 3}}}, // distributions maintain their own kernels
		Containerd: {release{1, 6}, []release{{1, 6}, {2, 3}}, map[release]string{{1, 6}: "2025-08-23",
			{2, 1}: "2026-05-05", {2, 2}: "2026-11-06", {2, 3}: "2028-04-30"}},
		CRIO: {tested: []release{{1, 36}}},
		Kubernetes: {release{1, 32}, []release{{1, 35}, {1, 36}, {1, 37}}, map[release]string{{1, 32}: "2026-02-28",
			{1, 33}: "2026-06-28", {1, 34}: "2026-10-27", {1, 35}: "2027-02-28"}},
	}
}

// Support is what is known about one version.
type Support struct {
	// TooOld names the oldest release that is supported, if this one is older.
	TooOld string
	words  string
}

func (s Support) String() string { return s.words }

// Of is what is known about a version at a time.
func Of(software Software, version string, now time.Time) Support {
	k, listed := table()[software]
	r, readable := parse(version)
	if !listed || !readable {
		return Support{words: "not tested"}
	}
	s := Support{words: "not tested"}
	switch {
	case r.compare(k.oldest) < 0:
		s.TooOld, s.words = k.oldest.String(), "too old: older than "+k.oldest.String()
	case slices.Contains(k.tested, r):
		s.words = "tested"
	case k.oldest != release{}:
		s.words = "not tested, should work"
	}
	if end := k.ends[r]; end != "" && end < now.UTC().Format(time.DateOnly) {
		s.words += "; no fixes since " + end
	} else if end != "" {
		s.words += "; fixes until " + end
	}
	return s
}

func parse(version string) (release, bool) {
	m := regexp.MustCompile(`(\d+)\.(\d+)`).FindStringSubmatch(version)
	if m == nil {
		return release{}, false
	}
	major, err := strconv.Atoi(m[1])
	minor, err2 := strconv.Atoi(m[2])
	return release{major, minor}, err == nil && err2 == nil
}

// OfNode are the versions that a Node reports.
func OfNode(info corev1.NodeSystemInfo) map[Software]string {
	out := map[Software]string{}
	runtime, version, _ := strings.Cut(info.ContainerRuntimeVersion, "://")
	for software, version := range map[Software]string{Kubernetes: strings.TrimPrefix(info.KubeletVersion, "v"),
		Linux: info.KernelVersion, Software(runtime): version} {
		if version != "" {
			out[software] = version
		}
	}
	return out
}

// Run is one version, and the nodes that run it.
type Run struct {
	Software Software `json:"software"`
	Version  string   `json:"version"`
	Nodes    []string `json:"nodes"`
}

// Runs are the versions of all nodes, whose names are the keys of the map, in order.
func Runs(nodes map[string]map[Software]string) []Run {
	var out []Run
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		for software, version := range nodes[node] {
			same := func(r Run) bool { return r.Software == software && r.Version == version }
			if i := slices.IndexFunc(out, same); i >= 0 {
				out[i].Nodes = append(out[i].Nodes, node)
				continue
			}
			out = append(out, Run{software, version, []string{node}})
		}
	}
	slices.SortFunc(out, func(a, b Run) int {
		return cmp.Or(cmp.Compare(a.Software, b.Software), cmp.Compare(a.Version, b.Version))
	})
	return out
}
