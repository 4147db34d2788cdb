package config

import (
	"slices"
	"strings"
)

// File is a set of config files that a key is valid in. A key that is valid in both has both bits.
type File uint8

// The two config files of Antrea.
const (
	Agent File = 1 << iota
	Controller
)

// String names the file as Antrea's ConfigMap does.
func (f File) String() string {
	switch f {
	case Agent:
		return "antrea-agent.conf"
	case Controller:
		return "antrea-controller.conf"
	}
	return "antrea-agent.conf and antrea-controller.conf"
}

// Effect is what happens to a key that is set.
type Effect string

// The three effects.
const (
	Honoured Effect = "honoured"
	Ignored  Effect = "ignored"
	Refused  Effect = "refused"
)

// Entry is one row of the table.
type Entry struct {
	In File
	// Key is the path of the key, its sections joined by dots.
	Key string
	// Want says which values are valid, for any effect.
	Want Want
	// Default is the value, as YAML, of an honoured key that is not set.
	Default string
	Effect  Effect
	// Except lists values of an honoured key with an effect of their own.
	Except []Exception
	// Harmless lists values to which the effect does not apply, because they lose nothing: Fairlead does that anyway, or
	// they tune what it does not have. An unset value (null, "", an empty list) is always harmless.
	Harmless []string
	// Text says what an honoured key does, what Fairlead does instead of an ignored one, or why a key is refused.
	Text string

	set func(*values, Value)
}

// Exception is the effect of one value of a key.
type Exception struct {
	Value  string
	Effect Effect
	Text   string
}

// effect returns what happens to value v of this key, and why.
func (e Entry) effect(v Value) (Effect, string) {
	for _, x := range e.Except {
		if x.Value == v.text {
			return x.Effect, x.Text
		}
	}
	if slices.Contains(e.Harmless, v.text) {
		return Honoured, ""
	}
	return e.Effect, e.Text
}

// Table returns every known key: those of the agent, then those of the controller, then the feature gates, which are
// valid in both files.
func Table() []Entry {
	return slices.Concat(honouredKeys(), agentKeys(), honouredControllerKeys(), controllerKeys(), featureGates())
}

// known is the table of one file, by key.
type known struct {
	entries  map[string]Entry
	sections map[string]bool
	// names are keys and sections in the table's order.
	names []string
}

func knownIn(f File) known {
	k := known{entries: map[string]Entry{}, sections: map[string]bool{}}
	for _, e := range Table() {
		if e.In&f == 0 {
			continue
		}
		k.entries[e.Key] = e
		for i := range e.Key {
			if e.Key[i] == '.' && !k.sections[e.Key[:i]] {
				k.sections[e.Key[:i]] = true
				k.names = append(k.names, e.Key[:i])
			}
		}
		k.names = append(k.names, e.Key)
	}
	return k
}

// leaf is the last part of a key's path.
func leaf(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }
