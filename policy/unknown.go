package policy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

// unknown are paths of fields, below spec, that the types of this version do not have:
// "spec.ingress[0].from[1].service". The API server sends such fields only as JSON.
type unknown []string

// maxErrors is how many errors the decoder returns at most (sigs.k8s.io/json, strictErrs). There may be more.
const maxErrors = 100

// decode decodes an API object from JSON, and returns the fields of its spec that o does not have. The error says what
// is wrong with the JSON.
func decode(doc []byte, o any) (unknown, error) {
	strict, err := kjson.UnmarshalStrict(doc, o, kjson.DisallowUnknownFields)
	if err != nil {
		return nil, err
	}
	var out unknown
	if len(strict) >= maxErrors {
		out = append(out, "spec")
	}
	for _, e := range strict {
		var field kjson.FieldError
		if !errors.As(e, &field) {
			return nil, e
		}
		if strings.HasPrefix(field.FieldPath(), "spec.") {
			out = append(out, field.FieldPath())
		}
	}
	return out, nil
}

// in returns the first unknown field at path or below.
func (u unknown) in(path string) string {
	for _, field := range u {
		if rest, ok := strings.CutPrefix(field, path); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return field
		}
	}
	return ""
}

// outside returns the first unknown field below none of the lists, for example "spec.ingress".
func (u unknown) outside(lists ...string) string {
	for _, field := range u {
		inside := false
		for _, list := range lists {
			inside = inside || strings.HasPrefix(field, list+"[")
		}
		if !inside {
			return field
		}
	}
	return ""
}

// checkKind returns an error unless the object is of a kind and version. Objects of a list may have neither.
func checkKind(t metav1.TypeMeta, version, kind string) error {
	if cmp.Or(t.APIVersion, version) != version || cmp.Or(t.Kind, kind) != kind {
		return fmt.Errorf("this is a %s %s, and only %s %s can be enforced", t.APIVersion, t.Kind, version, kind)
	}
	return nil
}

// compact formats an API value for a message.
func compact(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}
