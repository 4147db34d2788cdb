package conflist

import (
	"slices"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// safe is the CNI version that every runtime since 2022 supports. GC and STATUS, and the key cniVersions, are newer.
const safe = "1.0.0"

// knownBy returns those of the versions that the container runtime supports; runtime is its name and version as kubelet
// reports them in a Node's status.nodeInfo.containerRuntimeVersion, "containerd://1.7.27".
//
// A runtime that is not known to support more gets no version above 1.0.0, not even in cniVersions, which it would not
// read: a plugin between it and Fairlead, such as Multus, does read that key, uses the newest version in it, and
// responds, for every pod, in a version that the runtime rejects. A runtime that does support more loses little: it
// calls no STATUS, and CRI-O no GC, and the agent finds leftovers without them.
func knownBy(runtime string, versions []string) []string {
	if hasNewest(runtime) {
		return versions
	}
	return slices.DeleteFunc(slices.Clone(versions), newerThanSafe)
}

// hasNewest reports whether the runtime is built with libcni 1.2 or newer.
func hasNewest(runtime string) bool {
	name, version, _ := strings.Cut(runtime, "://")
	first, known := map[string]string{"containerd": "2.0", "cri-o": "1.32"}[name]
	if !known {
		return false
	}
	v, err := utilversion.ParseGeneric(version)
	return err == nil && v.AtLeast(utilversion.MustParseGeneric(first))
}

func newerThanSafe(version string) bool {
	v, err := utilversion.ParseGeneric(version)
	return err != nil || v.GreaterThan(utilversion.MustParseGeneric(safe))
}
