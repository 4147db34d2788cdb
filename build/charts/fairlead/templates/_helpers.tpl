{{/* The image, by digest if there is one. */}}
{{- define "fairlead.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{/* Metadata of all objects: (dict "name" NAME "component" COMPONENT). */}}
{{- define "fairlead.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: fairlead
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* The agent's config file, with the chart's own values merged in. */}}
{{- define "fairlead.agentConfig" -}}
{{- $config := deepCopy (.Values.agent.config | default dict) -}}
{{- if and .Values.serviceMonitor.enabled (not $config.apiAddress) -}}
{{- $_ := set $config "apiAddress" "0.0.0.0" -}}
{{- end -}}
{{- if .Values.kubeAPIServerOverride -}}
{{- $_ := set $config "kubeAPIServerOverride" .Values.kubeAPIServerOverride -}}
{{- end -}}
{{- if eq (include "fairlead.reachability" .) "none" -}}
{{- $_ := set $config "reachability" "none" -}}
{{- end -}}
{{- if $config -}}
{{ toYaml $config }}
{{- else -}}
# Every key has its default: docs/config.md.
{{- end -}}
{{- end -}}

{{/* Whether agents probe each other: not if some nodes have no agent, which would be reported as not reached. */}}
{{- define "fairlead.reachability" -}}
{{- $some := omit (.Values.agent.nodeSelector | default dict) "kubernetes.io/os" -}}
{{ (.Values.agent.config | default dict).reachability | default (ternary "none" "probe" (not (empty $some))) }}
{{- end -}}

{{/* The controller's config file. */}}
{{- define "fairlead.controllerConfig" -}}
{{- $config := deepCopy (.Values.controller.config | default dict) -}}
{{- if and .Values.serviceMonitor.enabled (not $config.apiAddress) -}}
{{- $_ := set $config "apiAddress" "0.0.0.0" -}}
{{- end -}}
{{- if .Values.kubeAPIServerOverride -}}
{{- $_ := set $config "kubeAPIServerOverride" .Values.kubeAPIServerOverride -}}
{{- end -}}
{{- if $config -}}
{{ toYaml $config }}
{{- else -}}
# Every key has its default: docs/config.md.
{{- end -}}
{{- end -}}

{{/* Host directories that the agent mounts. */}}
{{- define "fairlead.ovsRunDir" -}}
{{ (.Values.agent.config | default dict).ovsRunDir | default "/run/openvswitch" }}
{{- end -}}
{{- define "fairlead.datapath" -}}
{{ (.Values.agent.config | default dict).ovsDatapathType | default "system" }}
{{- end -}}
{{- define "fairlead.socketDir" -}}
{{ dir ((.Values.agent.config | default dict).cniSocket | default "/run/fairlead/cni.sock") }}
{{- end -}}
{{- define "fairlead.agentPort" -}}
{{ (.Values.agent.config | default dict).apiPort | default 10350 }}
{{- end -}}
{{- define "fairlead.controllerPort" -}}
{{ (.Values.controller.config | default dict).apiPort | default 10349 }}
{{- end -}}

{{/* The address for the agent's liveness and readiness probes. */}}
{{- define "fairlead.agentHost" -}}
{{- $address := (.Values.agent.config | default dict).apiAddress | default "127.0.0.1" -}}
{{- if eq $address "0.0.0.0" -}}127.0.0.1{{- else if eq $address "::" -}}::1{{- else -}}{{ $address }}{{- end -}}
{{- end -}}

{{/* What values.schema.json cannot express. */}}
{{- define "fairlead.check" -}}
{{- $agent := .Values.agent.config | default dict -}}
{{- $controller := .Values.controller.config | default dict -}}
{{- if ne .Release.Namespace "kube-system" -}}
{{- fail (printf "Fairlead must be installed in the namespace kube-system, not in %s: helm install -n kube-system ..." .Release.Namespace) -}}
{{- end -}}
{{- if $agent.manifestsDir -}}
{{- fail "agent.config.manifestsDir: agents in a cluster read the Kubernetes API. Remove it" -}}
{{- end -}}
{{- if and (eq (include "fairlead.reachability" .) "probe") (omit (.Values.agent.nodeSelector | default dict) "kubernetes.io/os") -}}
{{- fail "agent.config.reachability: probe cannot be combined with agent.nodeSelector: agents probe all nodes that have a podCIDR, and would report those without an agent as not reached. Remove one of the two" -}}
{{- end -}}
{{- if and $agent.noSNAT (ne (default "encap" $agent.trafficEncapMode) "noEncap") -}}
{{- fail "agent.config.noSNAT: true needs agent.config.trafficEncapMode: noEncap" -}}
{{- end -}}
{{- range $which, $config := dict "agent" $agent "controller" $controller -}}
{{- if and $config.kubeAPIServerOverride $.Values.kubeAPIServerOverride (ne $config.kubeAPIServerOverride $.Values.kubeAPIServerOverride) -}}
{{- fail (printf "kubeAPIServerOverride is %s, and %s.config.kubeAPIServerOverride is %s: set one of them" $.Values.kubeAPIServerOverride $which $config.kubeAPIServerOverride) -}}
{{- end -}}
{{- end -}}
{{- $nodeIPAM := default dict $controller.nodeIPAM -}}
{{- if and $nodeIPAM.enableNodeIPAM (not $nodeIPAM.clusterCIDRs) -}}
{{- fail "controller.config.nodeIPAM.enableNodeIPAM: true needs clusterCIDRs as well, such as [10.244.0.0/16]" -}}
{{- end -}}
{{- if and $nodeIPAM.enableNodeIPAM (not .Values.controller.enabled) -}}
{{- fail "controller.config.nodeIPAM.enableNodeIPAM: true needs controller.enabled: true" -}}
{{- end -}}
{{- if and .Values.controller.enabled (eq (include "fairlead.agentPort" .) (include "fairlead.controllerPort" .)) -}}
{{- fail (printf "agent.config.apiPort and controller.config.apiPort are both %s, on the same nodes: change one" (include "fairlead.agentPort" .)) -}}
{{- end -}}
{{- end -}}
