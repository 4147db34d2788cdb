// Package chart renders build/charts/fairlead with Helm's own packages, and compares the files generated from the
// chart: the plain manifest, the schema of the values, and their table in docs/install.md. "make manifests" writes all
// three.
package chart

import (
	"fmt"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/releaseutil"
	"helm.sh/helm/v3/pkg/strvals"
)

// KubeVersion is the version that the chart assumes where there is no cluster.
const KubeVersion = "v1.36.0"

// Template renders the chart in the directory dir for a namespace, with values in the syntax of "helm template --set".
// It returns the manifests, as "helm template --no-hooks" prints them, and the hooks.
func Template(dir, namespace string, sets ...string) (manifests string, hooks []*release.Hook, err error) {
	files, capabilities, err := render(dir, namespace, sets)
	if err != nil {
		return "", nil, err
	}
	delete(files, notesOf(files)) // for users
	hooks, sorted, err := releaseutil.SortManifests(files, capabilities.APIVersions, releaseutil.InstallOrder)
	if err != nil {
		return "", nil, err
	}
	var b strings.Builder
	for _, m := range sorted {
		fmt.Fprintf(&b, "---\n# Source: %s\n%s\n", m.Name, m.Content)
	}
	return b.String(), hooks, nil
}

// Notes is what Helm prints after an installation; otherwise as Template.
func Notes(dir, namespace string, sets ...string) (string, error) {
	files, _, err := render(dir, namespace, sets)
	return files[notesOf(files)], err
}

// notesOf is the name of the file of notes.
func notesOf(files map[string]string) string {
	for name := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			return name
		}
	}
	return ""
}

func render(dir, namespace string, sets []string) (map[string]string, *chartutil.Capabilities, error) {
	chart, err := loader.Load(dir)
	if err != nil {
		return nil, nil, err
	}
	values := map[string]any{}
	for _, set := range sets {
		if err := strvals.ParseInto(set, values); err != nil {
			return nil, nil, fmt.Errorf("--set=%s: %w", set, err)
		}
	}
	kube, err := chartutil.ParseKubeVersion(KubeVersion)
	if err != nil {
		return nil, nil, err
	}
	if !chartutil.IsCompatibleRange(chart.Metadata.KubeVersion, kube.String()) {
		return nil, nil, fmt.Errorf("the chart requires Kubernetes %s, not %s", chart.Metadata.KubeVersion, kube)
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *kube
	in, err := chartutil.ToRenderValues(chart, values,
		chartutil.ReleaseOptions{Name: "fairlead", Namespace: namespace, Revision: 1, IsInstall: true}, capabilities)
	if err != nil {
		return nil, nil, err
	}
	files, err := engine.Render(chart, in)
	return files, capabilities, err
}
