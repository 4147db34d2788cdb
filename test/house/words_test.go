package house

import (
	"go/ast"
	"go/scanner"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// word is one that is not used, and its replacement.
type word struct {
	not    *regexp.Regexp
	better string
}

func words(pairs ...string) (out []word) {
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, word{regexp.MustCompile(`(?i)\b(` + pairs[i] + `)\b`), pairs[i+1]})
	}
	return out
}

// What users and developers read has the words of docs/glossary.md. This package's own texts list the others.
func TestStringsHaveTheFieldsWords(t *testing.T) {
	list := words(
		`anew`, "again, or recreate(d)",
		`given back`, "released",
		`gives? back`, "release, restore",
		`taken? back`, "reclaimed, removed",
		`took back`, "reclaimed, removed",
		`whoever`, "a name for who it is",
		`somebody`, "what it is: another pod, a host outside of the cluster, an external change",
		`nobody`, "what is missing: no pod, no leader, no owner",
		`was set right|set right`, "reverted, repaired",
		`in vain`, "timed out",
		`is told|was told|tells`, "reported, says what",
		`mend(s|ed)?`, "fix, remedy",
		`hands? out`, "allocate",
		`gone for good`, "will not come back",
		`made anew`, "recreated",
		`by hand`, "manually",
		`tried again soon`, "will retry",
		`knows no`, "has no resource",
		`works;`, "is the leader",
		`pods? and node go on talking`, "the data path stays in place",
	)
	files, set := goFiles(t)
	for _, f := range files {
		if f.dir == "test/house" {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			for _, w := range list {
				if found := w.not.FindString(lit.Value); found != "" {
					t.Errorf("%s: %q in a text: %s (docs/glossary.md)", set.Position(lit.Pos()), found, w.better)
				}
			}
			return true
		})
	}
}

// Names are clear to an engineer who knows Kubernetes, Open vSwitch and CNI.
func TestNamesAreOfTheField(t *testing.T) {
	better := map[string]string{"heirloom": "inherited", "haver": "assignedNode", "Gift": "Assignment", "poke": "notify",
		"letGo": "release, and of what", "furnish": "set up, and what", "strange": "unsupported", "alien": "unknown",
		"owed": "pendingReleases", "crowd": "shuffleWindow", "Wire": "VLAN", "Piece": "Fragment",
		"Bounce": "OutputInPort", "Heed": "OnFlowStats", "Hear": "SetReceiving", "unended": "scanErrors",
		"takeGone": "flushUnseen", "GiveBack": "ReleaseOrphaned", "TakeBack": "Reclaim", "Anew": "NewEmpty",
		"whom": "selectNodes", "mends": "recovering, repairs", "mayGoOn": "staleEndpoints", "strays": "unpinned",
		"beaten": "checkFirst", "tellDenied": "logDenied", "goneFrom": "deletePod", "stillGood": "matches"}
	files, _ := goFiles(t)
	for _, f := range files {
		if f.dir == "test/house" {
			continue
		}
		set := token.NewFileSet()
		var s scanner.Scanner
		s.Init(set.AddFile(filepath.Base(f.path), -1, len(f.text)), f.text, nil, 0)
		for pos, tok, lit := s.Scan(); tok != token.EOF; pos, tok, lit = s.Scan() {
			if say := better[lit]; tok == token.IDENT && say != "" {
				t.Errorf("%s:%d: the name %s: %s", f.path, set.Position(pos).Line, lit, say)
			}
		}
	}
}

// Log keys are camelCase words, so that queries can name them.
func TestLogKeys(t *testing.T) {
	key := regexp.MustCompile(`^[a-z][A-Za-z]*$`)
	better := map[string]string{"why": "reason", "container": "containerID", "for": "owner", "set": "statefulSet",
		"was": "what it was", "every": "interval", "took": "duration", "error": "err, by log.Error", "what": "kind, change",
		"found": "change", "file": "path"}
	files, set := goFiles(t)
	for _, f := range files {
		if f.test {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			fun, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			first, known := map[string]int{"Info": 1, "Error": 2}[fun.Sel.Name]
			if !known || len(call.Args) <= first {
				return true
			}
			for i := first; i < len(call.Args); i += 2 {
				lit, ok := call.Args[i].(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					continue
				}
				name := strings.Trim(lit.Value, `"`)
				if say := better[name]; !key.MatchString(name) || say != "" {
					t.Errorf("%s: the log key %q: %s (docs/names.md)", set.Position(lit.Pos()), name, say)
				}
			}
			return true
		})
	}
}
