package versions

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestOf(t *testing.T) {
	now := time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		software              Software
		version, want, tooOld string
	}{
		{OpenVSwitch, "ovs-vswitchd (Open vSwitch) 3.1.0", "tested; no fixes since 2025-02-27", ""},
		{OpenVSwitch, "3.5.0", "tested", ""},
		{OpenVSwitch, "3.10.1", "not tested, should work", ""},
		{OpenVSwitch, "2.17.9", "too old: older than 3.1", "3.1"},
		{Containerd, "1.6.20~ds1", "tested; no fixes since 2025-08-23", ""},
		{Containerd, "2.3.7+unknown", "tested; fixes until 2028-04-30", ""},
		{Containerd, "1.4.3", "too old: older than 1.6", "1.6"},
		{Kubernetes, "1.36.3", "tested", ""},
		{Kubernetes, "1.37.2", "tested", ""},
		{Kubernetes, "1.35.9", "tested; fixes until 2027-02-28", ""},
		{Kubernetes, "1.34.1+k3s1", "not tested, should work; no fixes since 2026-10-27", ""},
		{Kubernetes, "1.9.0", "too old: older than 1.32", "1.32"},
		{Linux, "6.12.43+deb13-amd64", "tested", ""},
		{Linux, "5.10.0-35-amd64", "not tested", ""},
		{CRIO, "1.36.3", "tested", ""},
		{CRIO, "1.34.0", "not tested", ""},
		{"docker", "1.36.0", "not tested", ""},
		{Kubernetes, "unknown", "not tested", ""},
		{Kubernetes, "99999999999999999999.1", "not tested", ""},
	} {
		if got := Of(c.software, c.version, now); got.String() != c.want || got.TooOld != c.tooOld {
			t.Errorf("%s %s: %q, too old %q; want %q, %q", c.software, c.version, got, got.TooOld, c.want, c.tooOld)
		}
	}
}

func TestRuns(t *testing.T) {
	info := func(kubelet, kernel, runtime string) map[Software]string {
		return OfNode(corev1.NodeSystemInfo{KubeletVersion: kubelet, KernelVersion: kernel, ContainerRuntimeVersion: runtime})
	}
	got := Runs(map[string]map[Software]string{"b": info("v1.36.3", "6.12.1", "cri-o://1.34.0"),
		"a": info("v1.36.3", "6.12.1", "containerd://2.1.4"), "new": info("", "", "")})
	want := []Run{{Kubernetes, "1.36.3", []string{"a", "b"}}, {Linux, "6.12.1", []string{"a", "b"}},
		{Containerd, "2.1.4", []string{"a"}}, {"cri-o", "1.34.0", []string{"b"}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
