package chart

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/config"
)

// The schema has each value of values.yaml and no others, and each key of the two config files.
func TestSchema(t *testing.T) {
	text, err := json.MarshalIndent(schema(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, chartDir+"/values.schema.json", string(text)+"\n")
	for _, v := range values(t) {
		if !describes(schema(), strings.Split(v.key, ".")) {
			t.Errorf("%s of values.yaml is not in the schema", v.key)
		}
	}
}

// describes reports whether s has a property of its own for a key.
func describes(s config.Schema, key []string) bool {
	if len(key) == 0 {
		return true
	}
	properties, _ := s["properties"].(map[string]config.Schema)
	sub, known := properties[key[0]]
	return known && describes(sub, key[1:])
}

// object is an object with these properties and no others.
func object(properties map[string]config.Schema) config.Schema {
	return config.Schema{"type": []string{"object", "null"}, "additionalProperties": false, "properties": properties}
}

func schema() config.Schema {
	text, yes := config.Schema{"type": "string"}, config.Schema{"type": "boolean"}
	like := func(pattern string) config.Schema { return config.Schema{"type": "string", "pattern": pattern} }
	list := func(item config.Schema) config.Schema { return config.Schema{"type": "array", "items": item} }
	texts := config.Schema{"type": "object", "additionalProperties": text}
	toleration := config.Schema{"type": "object", "additionalProperties": false, "properties": map[string]config.Schema{
		"key": text, "value": text, "operator": {"enum": []any{"Exists", "Equal", "Lt", "Gt"}},
		"effect": {"enum": []any{"", "NoSchedule", "PreferNoSchedule", "NoExecute"}}, "tolerationSeconds": {"type": "integer"}}}
	quantities := config.Schema{"type": "object", "additionalProperties": config.Schema{"type": []string{"string", "number"}}}
	resources := object(map[string]config.Schema{"requests": quantities, "limits": quantities})
	path := like("^/.*$")
	duration := like(`^([0-9]+(s|m|h))+$`)
	number := func(least, most int) config.Schema {
		return config.Schema{"type": "integer", "minimum": least, "maximum": most}
	}
	s := object(map[string]config.Schema{
		"global": {"type": "object"}, // Helm's own
		"image": object(map[string]config.Schema{"repository": like(`^[^\s:@]+(:[0-9]+/[^\s:@]+)?$`),
			"tag": like(`^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$`), "digest": like(`^(sha256:[0-9a-f]{64})?$`),
			"pullPolicy": {"enum": []any{"Always", "IfNotPresent", "Never"}}, "pullSecrets": list(text)}),
		"kubeAPIServerOverride": text,
		"logVerbosity":          number(0, 10),
		"agent": object(map[string]config.Schema{"config": keysOf(config.Agent),
			"maxUnavailable": {"type": []string{"integer", "string"}, "pattern": "^[0-9]+%?$", "minimum": 1},
			"iptables":       {"enum": []any{"auto", "nft", "legacy"}},
			"cniBinDir":      path, "cniConfDir": path, "resources": resources, "nodeSelector": texts,
			"tolerations": list(toleration), "priorityClassName": text, "podAnnotations": texts}),
		"ovs": object(map[string]config.Schema{"enabled": yes, "resources": resources, "podAnnotations": texts}),
		"controller": object(map[string]config.Schema{"enabled": yes, "replicas": number(1, 9),
			"config": keysOf(config.Controller), "resources": resources, "nodeSelector": texts, "tolerations": list(toleration),
			"priorityClassName": text, "podAnnotations": texts}),
		"crds":         object(map[string]config.Schema{"install": yes}),
		"ipPoolPolicy": object(map[string]config.Schema{"install": yes}),
		"rbac":         object(map[string]config.Schema{"kubevirt": yes}),
		"serviceMonitor": object(map[string]config.Schema{"enabled": yes, "labels": texts,
			"interval": duration}),
		"prometheusRule": object(map[string]config.Schema{"enabled": yes, "labels": texts}),
		"uninstall":      object(map[string]config.Schema{"restoreNodes": yes, "timeout": duration}),
	})
	s["$schema"] = "http://json-schema.org/draft-07/schema#"
	s["title"] = "Values of the chart fairlead. Written by make manifests"
	return s
}

// keysOf is the schema of a config file, from its table of keys. Rejected keys have only their harmless values.
func keysOf(file config.File) config.Schema {
	root := object(map[string]config.Schema{})
	for _, e := range config.Table() {
		if e.In&file == 0 {
			continue
		}
		section := root
		keys := strings.Split(e.Key, ".")
		for _, k := range keys[:len(keys)-1] {
			properties := section["properties"].(map[string]config.Schema)
			if properties[k] == nil {
				properties[k] = object(map[string]config.Schema{})
			}
			section = properties[k]
		}
		section["properties"].(map[string]config.Schema)[keys[len(keys)-1]] = valueOf(e)
	}
	return root
}

func valueOf(e config.Entry) config.Schema {
	s := e.Want.Schema
	if e.Effect != config.Refused {
		for _, x := range e.Except {
			if x.Effect == config.Refused {
				s["enum"] = slices.DeleteFunc(s["enum"].([]any), func(v any) bool { return v == x.Value })
			}
		}
		return s
	}
	harmless := []any{nil, "", []any{}}
	for _, h := range e.Harmless {
		switch h {
		case "true", "false":
			harmless = append(harmless, h == "true")
		default:
			harmless = append(harmless, h)
		}
	}
	return config.Schema{"enum": harmless, "description": "refused: " + e.Text}
}
