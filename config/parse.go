package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/fairlead-cni/fairlead/api"
)

// Parse parses the agent's config from data. file is its name, for messages. The error is of type Errors and lists
// every fault. Empty data yields the defaults.
func Parse(data []byte, file string) (api.AgentConfig, []Finding, error) {
	c, warnings, err := check(data, file, Agent)
	return c.AgentConfig, warnings, err
}

// ParseController parses the controller's config, as Parse does for the agent's.
func ParseController(data []byte, file string) (api.ControllerConfig, []Finding, error) {
	c, warnings, err := check(data, file, Controller)
	return api.ControllerConfig{KubeAPIServerOverride: c.KubeAPIServerOverride, ClientConnection: c.ClientConnection,
		APIAddress: c.APIAddress, APIPort: c.APIPort, EnablePrometheusMetrics: c.EnablePrometheusMetrics,
		NodeIPAM: c.NodeIPAM, Reclaim: c.Reclaim, PoolWarningPercent: c.PoolWarningPercent}, warnings, err
}

// values are the values of either file.
type values struct {
	api.AgentConfig
	NodeIPAM api.NodeIPAM
	Reclaim  api.Reclaim

	PoolWarningPercent int
}

// defaults returns the config of an empty file.
func defaults(in File) values {
	var c values
	for _, e := range Table() {
		if e.In&in == 0 || e.set == nil {
			continue
		}
		var n yaml.Node
		if err := yaml.Unmarshal([]byte(e.Default), &n); err != nil {
			panic(fmt.Sprintf("default of %s: %v", e.Key, err)) // a bug in the table, and tested
		}
		if v, err := e.Want.of(n.Content[0]); err == nil {
			e.set(&c, v)
		}
	}
	return c
}

func check(data []byte, file string, in File) (values, []Finding, error) {
	p := parser{known: knownIn(in), in: in, config: defaults(in), at: map[string]*yaml.Node{}, faulty: map[string]bool{}}
	doc, fault := document(data, in)
	switch {
	case fault != nil:
		p.errors = append(p.errors, *fault)
	case doc != nil:
		p.section("", doc)
		p.combinations()
	}
	for _, list := range [][]Finding{p.errors, p.warnings} {
		for i := range list {
			list[i].File = file
		}
	}
	if len(p.errors) > 0 {
		slices.SortStableFunc(p.errors, byPosition)
		return values{}, nil, p.errors
	}
	return p.config, merged(p.warnings), nil
}

// maxHints is the number of errors after which unknown keys get no hint: so many mean that it is the wrong file, and
// hints take time.
const maxHints = 100

// parser walks a document along the table.
type parser struct {
	known    known
	in       File
	config   values
	errors   Errors
	warnings []Finding
	// at has the node of each honoured key that was set to a valid value, and faulty the keys whose value was invalid.
	at     map[string]*yaml.Node
	faulty map[string]bool
}

func (p *parser) fail(n *yaml.Node, key, text string) {
	p.errors = append(p.errors, finding(n, key, text))
}

func (p *parser) warn(n *yaml.Node, key, text string) {
	p.warnings = append(p.warnings, finding(n, key, text))
}

func finding(n *yaml.Node, key, text string) Finding {
	return Finding{Line: n.Line, Column: n.Column, Keys: []string{key}, Text: text}
}

// section parses the keys of one mapping; prefix is its path with a dot at the end, or empty at the top.
func (p *parser) section(prefix string, n *yaml.Node) {
	first := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		key := prefix + resolve(name).Value
		switch {
		case name.Tag == "!!merge":
			p.fail(name, prefix+"<<", "merge keys are not supported: write the keys out, or use an alias as a value")
		case resolve(name).Kind != yaml.ScalarNode:
			p.fail(name, prefix+"?", "a key must be a plain name, found "+describe(name))
		case first[key] != nil:
			p.fail(name, key, fmt.Sprintf("set twice, first in line %d", first[key].Line))
		default:
			first[key] = name
			p.key(key, name, value)
		}
	}
}

// key parses one key that is a section, an entry of the table, or an error.
func (p *parser) key(key string, name, value *yaml.Node) {
	if e, ok := p.known.entries[key]; ok {
		p.entry(e, name, value)
		return
	}
	if !p.known.sections[key] {
		text := "unknown key"
		if len(p.errors) < maxHints {
			text += hint(key, p.in, p.known)
		}
		p.fail(name, key, text)
		return
	}
	switch v := resolve(value); {
	case v.Kind == yaml.MappingNode:
		p.section(key+".", v)
	case v.Tag != "!!null":
		p.fail(value, key, "want a section, found "+describe(v))
	}
}

// entry parses the value of a key of the table and applies its effect.
func (p *parser) entry(e Entry, name, value *yaml.Node) {
	v, err := e.Want.of(value)
	if errors.Is(err, errUnset) {
		return
	}
	if err != nil {
		p.fail(value, e.Key, err.Error())
		p.faulty[e.Key] = true
		return
	}
	switch effect, text := e.effect(v); effect {
	case Refused:
		p.fail(name, e.Key, fmt.Sprintf("%s is not supported: %s", v.text, text))
		p.faulty[e.Key] = true
		return
	case Ignored:
		if e.Effect == Ignored {
			text = "has no effect: " + text
		}
		p.warn(name, e.Key, text)
	}
	if e.set != nil {
		e.set(&p.config, v)
		p.at[e.Key] = value
	}
}

// combinations checks the honoured keys that depend on each other.
func (p *parser) combinations() {
	c := p.config
	encapsulated := c.TrafficEncapMode != api.ModeNoEncap && !p.faulty["trafficEncapMode"]
	if n := p.at["noSNAT"]; n != nil && c.NoSNAT && encapsulated {
		p.fail(n, "noSNAT", fmt.Sprintf("true needs trafficEncapMode: noEncap, but it is %s: replies from outside reach a pod's address only where the underlay routes the podCIDRs", c.TrafficEncapMode))
	}
	p.unusedTunnelKeys()
	p.nodeIPAM()
	if n := p.at["tunnelPort"]; n != nil && c.TunnelPort != 0 && c.TunnelType == api.TunnelGRE {
		p.warn(n, "tunnelPort", "gre has no ports: the value is not used")
	}
	ours := []string{"ovsBridge", "hostGateway", "transportInterface"}
	for i, name := range []string{c.OVSBridge, c.HostGateway, c.TransportInterface} {
		n := p.at[ours[i]]
		switch {
		case n == nil:
		case strings.EqualFold(name, "fairlead-tun0"):
			p.fail(n, ours[i], "fairlead-tun0 is the name of the tunnel port")
		case i != 0 && name == c.OVSBridge, i == 2 && name == c.HostGateway:
			p.fail(n, ours[i], fmt.Sprintf("%s is already the name of the bridge or the gateway: each needs its own", name))
		}
	}
}

// unusedTunnelKeys warns about tunnel keys that are set without a tunnel.
func (p *parser) unusedTunnelKeys() {
	c := p.config
	if c.TrafficEncapMode != api.ModeNoEncap {
		return
	}
	for key, chosen := range map[string]bool{
		"tunnelType": c.TunnelType != api.TunnelGeneve, "tunnelPort": c.TunnelPort != 0, "tunnelCsum": c.TunnelCsum,
	} {
		if n := p.at[key]; n != nil && chosen {
			p.warn(n, key, "trafficEncapMode is noEncap, so there is no tunnel: the value is not used")
		}
	}
}
