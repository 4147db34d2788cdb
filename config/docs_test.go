package config

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// The tables of docs/config.md are the table of this package.
func TestDocs(t *testing.T) {
	const path = "../docs/config.md"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for part, table := range map[string]string{
		"honoured":            honouredTable(honouredKeys()),
		"controller honoured": honouredTable(honouredControllerKeys()),
		"refused":             effectTable(agentKeys(), Refused),
		"ignored":             effectTable(agentKeys(), Ignored),
		"gates":               gatesTable(),
		"controller":          effectTable(controllerKeys(), Ignored),
	} {
		section := regexp.MustCompile(`(?s)(<!-- begin ` + part + `:[^>]*-->\n).*(<!-- end ` + part + ` -->)`)
		if !section.MatchString(text) {
			t.Fatalf("%s has no section %s", path, part)
		}
		text = section.ReplaceAllString(text, "${1}\n"+strings.ReplaceAll(table, "$", "$$")+"\n${2}")
	}
	golden(t, path, string(data), text)
}

// docs/agent.conf is an example with the defaults, and is valid.
func TestExample(t *testing.T) {
	const path = "../docs/agent.conf"
	var b strings.Builder
	b.WriteString("# fairlead-agent: every key that has an effect, with its default. See docs/config.md.\n")
	section := ""
	for _, e := range honouredKeys() {
		in, key, nested := strings.Cut(e.Key, ".")
		if !nested {
			fmt.Fprintf(&b, "\n%s%s: %s\n", comment(e), e.Key, e.Default)
			continue
		}
		if in != section {
			fmt.Fprintf(&b, "\n%s:\n", in)
			section = in
		}
		fmt.Fprintf(&b, "%s  %s: %s\n", strings.ReplaceAll(comment(e), "#", "  #"), key, e.Default)
	}
	data, err := os.ReadFile(path)
	if err != nil && !*update {
		t.Fatal(err)
	}
	golden(t, path, string(data), b.String())

	c, warnings, err := Parse([]byte(b.String()), path)
	if err != nil || len(warnings) > 0 || !reflect.DeepEqual(c, defaults(Agent).AgentConfig) {
		t.Errorf("the example is not the defaults: %+v, warnings %v, error %v", c, warnings, err)
	}
}

func golden(t *testing.T, path, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	if !*update {
		t.Errorf("%s is not what the table says: go test ./config -update", path)
		return
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func honouredTable(keys []Entry) string {
	var b strings.Builder
	b.WriteString("| key | default | value | what it does |\n| --- | --- | --- | --- |\n")
	for _, e := range keys {
		text := e.Text
		for _, x := range e.Except {
			text += fmt.Sprintf(". `%s` is %s: %s", x.Value, map[Effect]string{
				Ignored: "accepted with a warning", Refused: "refused"}[x.Effect], x.Text)
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", e.Key, e.Default, e.Want.Text, text)
	}
	return b.String()
}

func effectTable(entries []Entry, effect Effect) string {
	var b strings.Builder
	headline := map[Effect]string{Ignored: "what Fairlead does instead", Refused: "why"}[effect]
	fmt.Fprintf(&b, "| key | value | harmless | %s |\n| --- | --- | --- | --- |\n", headline)
	for _, e := range entries {
		if e.Effect != effect {
			continue
		}
		harmless := ""
		if len(e.Harmless) > 0 {
			harmless = "`" + strings.Join(e.Harmless, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", e.Key, e.Want.Text, harmless, e.Text)
	}
	return b.String()
}

func gatesTable() string {
	var b strings.Builder
	b.WriteString("| gate | effect | why, or what Fairlead does instead |\n| --- | --- | --- |\n")
	for _, e := range featureGates() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", leaf(e.Key), e.Effect, e.Text)
	}
	return b.String()
}

// comment is the text of e as YAML comment lines of at most 100 characters.
func comment(e Entry) string {
	var b strings.Builder
	width := 0
	for _, word := range strings.Fields(strings.ReplaceAll(e.Text, "`", "")) {
		if width == 0 || width+len(word) > 97 {
			b.WriteString("\n# " + word)
			width = len(word) + 2
			continue
		}
		b.WriteString(" " + word)
		width += len(word) + 1
	}
	return strings.TrimPrefix(b.String(), "\n") + "\n"
}
