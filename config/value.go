package config

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Value is a value read from a file. The field that the key's Want names is set.
type Value struct {
	Bool     bool
	Int      int
	Str      string
	Duration time.Duration
	Addr     netip.Addr
	Prefixes []netip.Prefix

	// text is the value in one spelling, to compare it; empty when unset.
	text string
}

// Want says what a key's value must be: Text completes the message "want <Text>".
type Want struct {
	Text string
	// Schema is the JSON schema of the value, for validation by other programs such as Helm. It may accept values that
	// read rejects, and reject spellings that differ from the docs.
	Schema Schema
	// unset is the YAML tag whose empty value ("" or []) means unset.
	unset string
	read  func(*yaml.Node) (Value, bool)
}

// Schema is a part of a JSON schema (json-schema.org, draft 7).
type Schema map[string]any

// stringLike is the schema of a string that matches a pattern or is empty.
func stringLike(pattern string) Schema {
	s := Schema{"type": []string{"string", "null"}}
	if pattern != "" {
		s["pattern"] = "^(" + pattern + ")?$"
	}
	return s
}

// listOf is the schema of a list.
func listOf(item Schema) Schema {
	return Schema{"type": []string{"array", "null"}, "items": item}
}

// Patterns of schemas.
const (
	pattern4        = `[0-9.]+/[0-9]+`
	pattern6        = `[0-9a-fA-F:.]+/[0-9]+`
	patternAddress  = `[0-9a-fA-F:.]+`
	patternDuration = `([0-9.]+(ns|us|ms|s|m|h))+`
	patternPath     = `/.*`
	patternName     = `[a-zA-Z0-9._-]{1,15}`
	patternNames    = `[a-zA-Z0-9._*?\[\]^-]{1,64}`
)

// nameChars are those of interface names; the kernel allows more.
const nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

// errUnset marks a value that means "as if the key were not there".
var errUnset = errors.New("unset")

// of reads n. The error is errUnset, or says which value is wanted and which was found.
func (w Want) of(n *yaml.Node) (Value, error) {
	n = resolve(n)
	empty := n.Tag == w.unset && n.Value == "" && len(n.Content) == 0
	if empty || n.Tag == "!!null" {
		return Value{}, errUnset
	}
	v, ok := w.read(n)
	if !ok {
		return Value{}, fmt.Errorf("want %s, found %s", w.Text, describe(n))
	}
	return v, nil
}

// resolve returns the node that an alias (*name) refers to.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// describe describes a value of the file for an error message.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a section"
	case yaml.SequenceNode:
		parts := make([]string, 0, len(n.Content))
		for _, c := range n.Content {
			c = resolve(c)
			if c.Kind != yaml.ScalarNode {
				return "a list of sections or lists"
			}
			parts = append(parts, shorten(c.Value))
		}
		return shorten("[" + strings.Join(parts, ", ") + "]")
	}
	if n.Tag == "!!str" {
		return strconv.Quote(shorten(n.Value))
	}
	return shorten(n.Value)
}

func shorten(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:60]) + "…"
	}
	return s
}

func boolean() Want {
	return Want{"true or false", Schema{"type": []string{"boolean", "null"}}, "", func(n *yaml.Node) (v Value, ok bool) {
		// Decode also accepts yes and no, on and off, as Antrea does.
		ok = n.Kind == yaml.ScalarNode && n.Decode(&v.Bool) == nil
		v.text = strconv.FormatBool(v.Bool)
		return v, ok
	}}
}

func integer(lowest, highest int) Want {
	return wholeNumber(fmt.Sprintf("a whole number from %d to %d", lowest, highest), lowest, highest, func(i int) bool {
		return lowest <= i && i <= highest
	})
}

// orZero is integer or 0, which stands for the default.
func orZero(lowest, highest int) Want {
	w := wholeNumber(fmt.Sprintf("0 or a whole number from %d to %d", lowest, highest), 0, highest, func(i int) bool {
		return i == 0 || lowest <= i && i <= highest
	})
	w.Schema["anyOf"] = []Schema{{"maximum": 0}, {"minimum": lowest}}
	return w
}

func wholeNumber(what string, lowest, highest int, ok func(int) bool) Want {
	schema := Schema{"type": []string{"integer", "null"}, "minimum": lowest, "maximum": highest}
	return Want{what, schema, "", func(n *yaml.Node) (Value, bool) {
		var i int
		if n.Tag != "!!int" || n.Decode(&i) != nil {
			return Value{}, false
		}
		return Value{Int: i, text: strconv.Itoa(i)}, ok(i)
	}}
}

func port() Want { return integer(0, 65535) }

// text is a string for which ok returns true; what describes it.
func text(what, pattern string, ok func(string) bool) Want {
	return Want{what, stringLike(pattern), "!!str", func(n *yaml.Node) (Value, bool) {
		v := Value{Str: n.Value, text: n.Value}
		return v, n.Kind == yaml.ScalarNode && n.Tag == "!!str" && ok(n.Value)
	}}
}

func anyText() Want { return text("a string", "", func(string) bool { return true }) }

// oneOf is one of values, in any mix of upper and lower case, as in Antrea.
func oneOf(values ...string) Want {
	enum := []any{nil, ""}
	for _, v := range values {
		enum = append(enum, v)
	}
	return Want{"one of " + strings.Join(values, ", "), Schema{"enum": enum}, "!!str", func(n *yaml.Node) (Value, bool) {
		for _, s := range values {
			if n.Kind == yaml.ScalarNode && n.Tag == "!!str" && strings.EqualFold(n.Value, s) {
				return Value{Str: s, text: s}, true
			}
		}
		return Value{}, false
	}}
}

// interfaceName is a name that both the kernel (dev_valid_name) and Open vSwitch (which rejects names with a leading
// dash) accept.
func interfaceName() Want {
	return text("an interface name of 1 to 15 characters from a-z A-Z 0-9 . _ -", patternName, isInterfaceName)
}

func isInterfaceName(s string) bool {
	if len(s) > 15 || s == "." || s == ".." || strings.HasPrefix(s, "-") {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool { return !strings.ContainsRune(nameChars, r) }) < 0
}

// interfacePattern is an interface's name, or a pattern of filepath.Match without escapes.
func interfacePattern() Want {
	return text("an interface name or a pattern such as en* or eth[01]", patternNames, func(s string) bool {
		if isInterfaceName(s) {
			return true
		}
		_, err := filepath.Match(s, "")
		return err == nil && len(s) <= 64 && strings.ContainsAny(s, "*?[") && strings.Trim(s, nameChars+"*?[]^") == ""
	})
}

// path is an absolute path of at most longest bytes.
func path(longest int) Want {
	return text(fmt.Sprintf("an absolute path of at most %d bytes", longest), patternPath, func(s string) bool {
		return filepath.IsAbs(s) && len(s) <= longest && !strings.ContainsRune(s, 0)
	})
}

func address() Want {
	return Want{"an IP address", stringLike(patternAddress), "!!str", func(n *yaml.Node) (Value, bool) {
		a, err := netip.ParseAddr(n.Value)
		return Value{Addr: a, text: n.Value}, err == nil
	}}
}

// subnet4 is one IPv4 prefix.
func subnet4() Want { return subnetOf("an IPv4 subnet such as 10.96.0.0/12", pattern4, netip.Addr.Is4) }

func subnet6() Want {
	return subnetOf("an IPv6 subnet such as fd00:10:96::/112", pattern6,
		func(a netip.Addr) bool { return a.Is6() && !a.Is4In6() })
}

// subnetOf is one prefix of the family for which is returns true.
func subnetOf(what, pattern string, is func(netip.Addr) bool) Want {
	return Want{what, stringLike(pattern), "!!str", func(n *yaml.Node) (Value, bool) {
		p, err := netip.ParsePrefix(n.Value)
		return Value{Prefixes: []netip.Prefix{p.Masked()}, text: n.Value}, err == nil && is(p.Addr())
	}}
}

func subnets() Want {
	schema := listOf(Schema{"type": "string", "pattern": "^" + pattern6 + "$"})
	return Want{"a list of subnets such as [10.0.0.0/8, fd00::/64]", schema, "!!seq", func(n *yaml.Node) (v Value, ok bool) {
		if n.Kind != yaml.SequenceNode {
			return v, false
		}
		for _, c := range n.Content {
			p, err := netip.ParsePrefix(resolve(c).Value)
			if err != nil {
				return v, false
			}
			v.Prefixes = append(v.Prefixes, p.Masked())
		}
		v.text = describe(n)
		return v, true
	}}
}

// duration is a duration in Go's notation, from 0 to longest.
func duration(longest time.Duration, inWords string) Want { return durationFrom(0, longest, inWords) }

func durationFrom(shortest, longest time.Duration, inWords string) Want {
	what := "a duration with its unit, such as 10s" + inWords
	return Want{what, stringLike(patternDuration), "!!str", func(n *yaml.Node) (Value, bool) {
		d, err := time.ParseDuration(n.Value)
		return Value{Duration: d, text: n.Value}, err == nil && shortest <= d && d <= longest
	}}
}

func anyDuration() Want { return duration(math.MaxInt64, "") }

// list is a list of scalars with the given tag, such as "!!str".
func list(what, tag string) Want {
	item := Schema{"type": map[string]string{"!!str": "string", "!!int": "integer"}[tag]}
	return Want{"a list of " + what, listOf(item), "!!seq", func(n *yaml.Node) (Value, bool) {
		for _, c := range n.Content {
			if c = resolve(c); c.Kind != yaml.ScalarNode || c.Tag != tag {
				return Value{}, false
			}
		}
		return Value{text: describe(n)}, n.Kind == yaml.SequenceNode
	}}
}

func names() Want { return list("strings", "!!str") }

// anyList is a list whose elements are not validated.
func anyList() Want {
	return Want{"a list", listOf(Schema{}), "!!seq", func(n *yaml.Node) (Value, bool) {
		return Value{text: "[…]"}, n.Kind == yaml.SequenceNode
	}}
}
