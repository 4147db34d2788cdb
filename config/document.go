package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// MaxSize is the largest config file read, in bytes: what a ConfigMap can hold.
const MaxSize = 1 << 20

// document returns the one YAML document of data, or nil if there is none or it is empty.
func document(data []byte, in File) (*yaml.Node, *Finding) {
	if f := notText(data); f != nil {
		return nil, f
	}
	docs, f := documents(data)
	if f != nil {
		return nil, f
	}
	if f := manifest(docs, in); f != nil {
		return nil, f
	}
	switch {
	case len(docs) == 0:
		return nil, nil
	case len(docs) > 1:
		return nil, &Finding{Line: docs[1].Line, Column: docs[1].Column,
			Text: "a second YAML document begins here: a config file has exactly one"}
	case docs[0].Kind != yaml.MappingNode:
		return nil, &Finding{Line: docs[0].Line, Column: docs[0].Column,
			Text: "want keys with values (\"key: value\"), found " + describe(docs[0])}
	}
	return docs[0], nil
}

// notText finds input for which YAML parsers have poor error messages.
func notText(data []byte) *Finding {
	switch {
	case len(data) > MaxSize:
		return &Finding{Text: fmt.Sprintf("larger than %d bytes", MaxSize)}
	case bytes.HasPrefix(data, []byte{0xff, 0xfe}), bytes.HasPrefix(data, []byte{0xfe, 0xff}):
		return &Finding{Text: "encoded in UTF-16: save it as UTF-8"}
	}
	for i, line := range bytes.Split(data, []byte("\n")) {
		if !utf8.Valid(line) {
			return &Finding{Line: i + 1, Text: "not UTF-8 text"}
		}
	}
	return nil
}

// documents returns the non-empty documents of data.
func documents(data []byte) ([]*yaml.Node, *Finding) {
	var docs []*yaml.Node
	for dec := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var n yaml.Node
		err := dec.Decode(&n)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return nil, syntax(data, err)
		}
		if len(n.Content) == 1 && n.Content[0].Tag != "!!null" {
			docs = append(docs, n.Content[0])
		}
	}
}

var (
	yamlError     = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)
	unknownAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
)

// syntax converts an error of the YAML parser to a finding. Its most common cause is a tab, which is invisible.
func syntax(data []byte, err error) *Finding {
	m := yamlError.FindStringSubmatch(err.Error())
	if m == nil {
		return &Finding{Text: "not YAML: " + err.Error()}
	}
	tab := strings.Contains(m[2], "tab") || strings.Contains(m[2], "cannot start any token")
	for i, line := range strings.Split(string(data), "\n") {
		if indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]; tab && strings.Contains(indent, "\t") {
			return &Finding{Line: i + 1, Column: strings.IndexByte(indent, '\t') + 1,
				Text: "a tab: YAML is indented with spaces only"}
		}
	}
	line, _ := strconv.Atoi(m[1]) // 0 if the parser names no line
	if strings.HasPrefix(m[2], "did not find expected") {
		// The parser, unlike the scanner before it, counts from 0, except in the first line.
		line = min(line+1, strings.Count(string(data), "\n")+1)
	}
	if a := unknownAnchor.FindStringSubmatch(m[2]); a != nil {
		before, _, _ := strings.Cut(string(data), "*"+a[1])
		line = strings.Count(before, "\n") + 1
	}
	return &Finding{Line: line, Text: "not YAML: " + m[2]}
}

// manifest recognises Kubernetes manifests passed instead of the config file that one of them contains, and says which
// part to use.
func manifest(docs []*yaml.Node, in File) *Finding {
	for _, doc := range docs {
		name := child(child(doc, "metadata"), "name")
		if conf := child(child(doc, "data"), in.String()); conf != nil {
			what := "a ConfigMap"
			if name != nil {
				what = "the ConfigMap " + name.Value
			}
			return &Finding{Line: conf.Line, Column: conf.Column, Text: fmt.Sprintf("this is %s, not a config file: use the text that begins here (data, %s) without its indentation", what, in)}
		}
		if conf := child(doc, in.String()); conf != nil {
			return &Finding{Line: conf.Line, Column: conf.Column, Text: fmt.Sprintf("this is a part of a ConfigMap, not a config file: use the text that begins here (%s) without its indentation", in)}
		}
	}
	for _, doc := range docs {
		if kind := child(doc, "kind"); kind != nil && child(doc, "apiVersion") != nil {
			return &Finding{Line: kind.Line, Column: kind.Column, Text: fmt.Sprintf("this is a Kubernetes manifest "+
				"(%s), not a config file: Antrea has the config in its ConfigMap, under data, %s", describe(kind), in)}
		}
	}
	return nil
}

// child returns the value of a key of a mapping, or nil.
func child(n *yaml.Node, key string) *yaml.Node {
	if n == nil || resolve(n).Kind != yaml.MappingNode {
		return nil
	}
	n = resolve(n)
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}
