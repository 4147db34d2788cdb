package chart

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
)

const imageDocs = "../../docs/image.md"

// podsOf are the Pods of the chart's DaemonSets and Deployments, and of the Job that uninstalls, by name.
func podsOf(t *testing.T, set string) map[string]corev1.PodSpec {
	t.Helper()
	manifests, job := uninstallJob(t, set)
	pods := map[string]corev1.PodSpec{job.Name: job.Spec.Template.Spec}
	decoder := serializer.NewCodecFactory(kubescheme.Scheme).UniversalDeserializer()
	for _, doc := range strings.Split(manifests, "\n---\n") {
		object, _, err := decoder.Decode([]byte(doc), nil, nil)
		if err != nil {
			continue // a definition: TestObjects
		}
		switch o := object.(type) {
		case *appsv1.DaemonSet:
			pods[o.Name] = o.Spec.Template.Spec
		case *appsv1.Deployment:
			pods[o.Name] = o.Spec.Template.Spec
		}
	}
	return pods
}

// privileges are what a Pod has of its node, each as "NAME WHAT".
func privileges(pod string, spec corev1.PodSpec) (all []string) {
	for what, is := range map[string]bool{"hostNetwork": spec.HostNetwork, "hostPID": spec.HostPID, "hostIPC": spec.HostIPC} {
		if is {
			all = append(all, pod+" "+what)
		}
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if p := c.SecurityContext.Privileged; p != nil && *p {
			all = append(all, c.Name+" privileged")
		}
		if caps := c.SecurityContext.Capabilities; caps != nil {
			for _, one := range caps.Add {
				all = append(all, c.Name+" "+string(one))
			}
		}
		for _, m := range c.VolumeMounts {
			if slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name && v.HostPath != nil }) {
				all = append(all, c.Name+" "+m.MountPath)
			}
		}
	}
	return all
}

// The table of docs/image.md has every privilege that a container has, with its reason, and no other.
func TestPrivileges(t *testing.T) {
	text, err := os.ReadFile(imageDocs)
	if err != nil {
		t.Fatal(err)
	}
	explained := map[string]bool{}
	_, table, _ := strings.Cut(string(text), "| container | what | why | without it |\n")
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.ReplaceAll(line, "`", ""), " | ")
		if len(cells) != 4 {
			break
		}
		if cells[1] == "---" {
			continue
		}
		explained[strings.TrimPrefix(cells[0], "| ")+" "+cells[1]] = true
	}
	has := map[string]bool{}
	for _, set := range []string{"", "agent.config.ovsDatapathType=netdev", "ovs.enabled=false"} {
		for name, spec := range podsOf(t, set) {
			for _, p := range privileges(name, spec) {
				has[p] = true
			}
		}
	}
	for _, p := range slices.Sorted(maps.Keys(has)) {
		if !explained[p] {
			t.Errorf("%s has no row for %s", imageDocs, p)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(explained)) {
		if !has[p] {
			t.Errorf("%s explains %s, which no container has", imageDocs, p)
		}
	}
}

// Containers have read-only root file systems, and unprivileged ones have nothing beyond the table.
func TestContainersAreConfined(t *testing.T) {
	for name, spec := range podsOf(t, "agent.config.ovsDatapathType=netdev") {
		for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
			s := c.SecurityContext
			if s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
				t.Errorf("%s: the root of %s may be written to", name, c.Name)
			}
			if s.Privileged != nil && *s.Privileged {
				continue // the other fields have no effect
			}
			if s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
				t.Errorf("%s: programs of %s may gain privileges", name, c.Name)
			}
			if s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%s: %s keeps capabilities: %v", name, c.Name, s.Capabilities)
			}
			profile := s.SeccompProfile
			if profile == nil && spec.SecurityContext != nil {
				profile = spec.SecurityContext.SeccompProfile
			}
			if profile == nil || profile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s: %s has the seccomp profile %v", name, c.Name, profile)
			}
		}
	}
}

// Where a Pod has several containers, only the one that calls the API server has a token.
func TestTokens(t *testing.T) {
	for name, spec := range podsOf(t, "") {
		automatic := spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken
		if automatic && len(spec.InitContainers)+len(spec.Containers) > 1 {
			t.Errorf("%s: each container has a token", name)
		}
		var has []string
		for _, v := range spec.Volumes {
			if v.Projected == nil {
				continue
			}
			for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
				if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name }) {
					has = append(has, c.Name)
				}
			}
		}
		if want := map[string]string{"fairlead-agent": "fairlead-agent"}[name]; strings.Join(has, " ") != want {
			t.Errorf("%s: tokens in %q, want %q", name, has, want)
		}
	}
}
