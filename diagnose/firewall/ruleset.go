package firewall

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// Ruleset is what nftables has in one network namespace.
type Ruleset struct {
	bases  []chain // the base chains, which the kernel calls
	rules  map[chainID][]rule
	values map[setID][]any // of named sets
}

// chainID and setID have family, table and name.
type (
	chainID [3]string
	setID   [3]string
)

// chain is a base chain, as described in libnftables-json(5).
type chain struct {
	Family, Table, Name string
	Type, Hook, Policy  string
	Prio                int
}

// rule is a rule: its expressions are conditions, comments and a verdict, in any order.
type rule struct {
	Family, Table, Chain string
	Handle               int
	Expr                 []map[string]any
}

// set is a named set.
type set struct {
	Family, Table, Name string
	Elem                []any
}

// Read returns the rules of the calling thread's network namespace. It needs root and the program nft.
func Read(ctx context.Context) (Ruleset, error) {
	cmd := exec.CommandContext(ctx, "nft", "-j", "list", "ruleset")
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return Ruleset{}, fmt.Errorf("reading the nftables rules: %w: %s", err, strings.TrimSpace(complaint.String()))
	}
	return parse(out)
}

func parse(text []byte) (Ruleset, error) {
	var all struct {
		Nftables []struct {
			Chain *chain
			Rule  *rule
			Set   *set
		}
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return Ruleset{}, fmt.Errorf("the output of nft -j list ruleset: %w", err)
	}
	r := Ruleset{rules: map[chainID][]rule{}, values: map[setID][]any{}}
	for _, o := range all.Nftables {
		switch {
		case o.Chain != nil && o.Chain.Hook != "":
			r.bases = append(r.bases, *o.Chain)
		case o.Rule != nil:
			id := chainID{o.Rule.Family, o.Rule.Table, o.Rule.Chain}
			r.rules[id] = append(r.rules[id], *o.Rule)
		case o.Set != nil:
			r.values[setID{o.Set.Family, o.Set.Table, o.Set.Name}] = o.Set.Elem
		}
	}
	slices.SortStableFunc(r.bases, func(a, b chain) int { return a.Prio - b.Prio })
	return r, nil
}
