package nat

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-iptables/iptables"
)

// family is IPv4 or IPv6, with the programs that read and write its tables.
type family struct {
	program, restore string
	proto            iptables.Protocol
	is6              bool
	// path is the program's, if it need not be looked up; dryRun: change nothing.
	path   string
	dryRun bool
}

func families() []family {
	return []family{
		{program: "iptables", restore: "iptables-restore", proto: iptables.ProtocolIPv4},
		{program: "ip6tables", restore: "ip6tables-restore", proto: iptables.ProtocolIPv6, is6: true},
	}
}

// lockWait is how many seconds to wait for other processes that change the tables; runLimit ends a program that hangs
// nevertheless.
const (
	lockWait = 5
	runLimit = 30 * time.Second
)

// Tables are the node's tables, with the programs found to read them. The zero value is ready to use.
type Tables struct {
	programs map[string]program
	chains   map[table]chainNames
	clean    cleanRead
	// applied is what was last applied.
	applied *Desired
}

// table is a table of the rules that a program writes.
type table struct{ program, name string }

// chainNames are the chains that a table had when it was listed, with Fairlead's own kept up to date: nobody else
// creates those.
type chainNames map[string]bool

// program is iptables or ip6tables, with what its version supports, and the file for which this holds:
// update-alternatives and upgrades can replace it.
type program struct {
	ipt  *iptables.IPTables
	file os.FileInfo
	nft  bool // writes nftables rules, not legacy tables
}

func (t *Tables) apply(ctx context.Context, f family, c chain) (changes []string, err error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	ipt, err := t.find(ctx, f)
	if errors.Is(err, exec.ErrNotFound) {
		if len(c.rules) == 0 {
			return nil, nil // no program, so no rules to remove
		}
		return nil, fmt.Errorf("%s is not installed: install the package iptables", f.program)
	}
	if err != nil {
		return nil, err
	}
	chains := t.list(f, ipt, c.table)
	existed := chains == nil || chains[c.name]
	if len(c.rules) == 0 && !existed {
		return nil, nil // and no rule can jump there
	}
	changes, err = f.apply(ctx, ipt, c, existed)
	if chains != nil && !f.dryRun {
		chains[c.name] = len(c.rules) > 0 || err != nil
	}
	return changes, err
}

// list returns the chains of a table, nil if unknown. A single list starts fewer programs than asking for each chain.
// It is empty if the table has a base chain of another program: iptables-nft begins with a comment then, and
// go-iptables reads no further. No table is without a built-in chain.
func (t *Tables) list(f family, ipt *iptables.IPTables, name string) chainNames {
	this := table{f.program, name}
	if chains := t.chains[this]; chains != nil {
		return chains
	}
	names, err := ipt.ListChains(name)
	if err != nil || len(names) == 0 {
		return nil
	}
	chains := chainNames{}
	for _, n := range names {
		chains[n] = true
	}
	t.chains[this] = chains
	return chains
}

// find returns the family's program, the cached one if its file is the same.
func (t *Tables) find(ctx context.Context, f family) (*iptables.IPTables, error) {
	path, err := exec.LookPath(cmp.Or(f.path, f.program))
	if err != nil {
		return nil, err
	}
	file, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if p, ok := t.programs[f.program]; ok && os.SameFile(p.file, file) && p.file.ModTime().Equal(file.ModTime()) {
		return p.ipt, nil
	}
	ipt, err := iptables.New(iptables.IPFamily(f.proto), iptables.Timeout(lockWait), iptables.Path(path))
	if err != nil {
		return nil, err
	}
	if t.programs == nil {
		t.programs = map[string]program{}
	}
	t.programs[f.program] = program{ipt, file, writesNFT(ctx, path)}
	t.chains = map[table]chainNames{} // the other back end has others
	return ipt, nil
}

// writesNFT reports whether the program at path uses the nft backend, by what "iptables --version" prints in brackets.
func writesNFT(ctx context.Context, path string) bool {
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	version, err := exec.CommandContext(ctx, path, "--version").Output()
	return err == nil && bytes.Contains(version, []byte("(nf_tables)"))
}

// apply reconciles c, which may have existed, and its jump. ctx does not end go-iptables' calls, which only read and
// wait for lockWait at most.
func (f family) apply(ctx context.Context, ipt *iptables.IPTables, c chain, existed bool) ([]string, error) {
	if strings.Contains(strings.Join(c.rules, " "), "--random-fully") && !ipt.HasRandomFully() {
		return nil, errors.New("this version has no --random-fully (it came with 1.6.2): set snatFullyRandomPorts to false")
	}
	base, err := ipt.List(c.table, c.base)
	if err != nil {
		return nil, fmt.Errorf("reading chain %s of table %s: %w%s", c.base, c.table, err, hint(err.Error()))
	}
	have := absent
	if existed {
		have = f.contents(ipt, c)
	}
	lines, changes := c.commit(base, have)
	if len(lines) == 0 {
		return nil, nil
	}
	for i := range changes {
		changes[i] = f.program + " " + changes[i]
	}
	if f.dryRun {
		return changes, nil
	}
	input := "*" + c.table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
	if err := f.run(ctx, input); err != nil {
		return nil, fmt.Errorf("writing chain %s of table %s: %w", c.name, c.table, err)
	}
	return changes, nil
}

// state is how a chain's content compares with what is wanted.
type state int

const (
	absent state = iota
	different
	equal
)

// contents compares the chain in the kernel with c.
func (f family) contents(ipt *iptables.IPTables, c chain) state {
	lines, err := ipt.List(c.table, c.name)
	if err != nil {
		// iptables-nft calls a missing chain "incompatible", like one that it cannot print. Either must be written.
		if exists, err := ipt.ChainExists(c.table, c.name); err == nil && exists {
			return different
		}
		return absent
	}
	lines = slices.DeleteFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "-A ") })
	if len(lines) != len(c.rules) {
		return different
	}
	for i, rule := range c.rules {
		if lines[i] == "-A "+c.name+" "+rule {
			continue
		}
		// Versions print the same rule differently; let this one check it.
		same, err := ipt.Exists(c.table, c.name, strings.Fields(rule)...)
		if err != nil || !same || !sameRanges(lines[i], rule) {
			return different
		}
	}
	return equal
}

// sameRanges reports whether two rules have the same sources and destinations. ip6tables-nft (1.8.9) reports that a
// rule for a /63 exists if there is one for a /64 with the same address.
func sameRanges(a, b string) bool {
	for _, option := range []string{"-s", "-d"} {
		if rangeOf(a, option) != rangeOf(b, option) {
			return false
		}
	}
	return true
}

// rangeOf returns a rule's prefix for -s or -d, the zero value if it has none.
func rangeOf(rule, option string) netip.Prefix {
	words := strings.Fields(rule)
	i := slices.Index(words, option)
	if i < 0 || i+1 == len(words) {
		return netip.Prefix{}
	}
	p, err := netip.ParsePrefix(words[i+1]) // iptables prints the length of each, and omits a /0
	if err != nil || p.Bits() == 0 {
		return netip.Prefix{}
	}
	return p.Masked()
}

// dropsAll matches a rule that drops or rejects everything, as "iptables -S" prints it.
var dropsAll = regexp.MustCompile(`^-A \S+( -m comment --comment (\S+|"[^"]*"))? -j (DROP|REJECT)\b`)

// commit returns the input for iptables-restore, given the rules of the base chain and the state of our own. None means
// that everything is as wanted.
func (c chain) commit(base []string, have state) (lines []string, changes []string) {
	want := len(c.rules) > 0
	if want && have != equal {
		lines = append(lines, ":"+c.name+" - [0:0]") // creates it, or flushes it
		for _, rule := range c.rules {
			lines = append(lines, "-A "+c.name+" "+rule)
		}
		changes = append(changes, c.table+": "+c.name+" written")
	}
	wrong, missing := c.jumps(base)
	for _, line := range wrong {
		lines = append(lines, "-D"+strings.TrimPrefix(line, "-A"))
		changes = append(changes, c.table+": removed "+line)
	}
	if missing != "" {
		lines = append(lines, missing)
		change := c.table + ": added " + missing
		others := func(line string) bool { return strings.HasPrefix(line, "-A ") && !jumpsTo(line, c.name) }
		if i := slices.IndexFunc(base, others); i >= 0 && c.place == first {
			change += ", before " + base[i]
		}
		changes = append(changes, change)
	}
	if !want && have != absent {
		lines = append([]string{":" + c.name + " - [0:0]"}, append(lines, "-X "+c.name)...)
		changes = append(changes, c.table+": "+c.name+" removed")
	}
	return lines, changes
}

// jumps returns the jumps in the base chain that must be removed, and the command that adds the right one; empty if it
// exists. If there are several, all are removed: deleting one of two copies deletes the first.
func (c chain) jumps(base []string) (wrong []string, missing string) {
	want, jump := len(c.rules) > 0, "-A "+c.base+" -j "+c.name
	others, behind, stop := 0, 0, 0 // counts of others' rules: all; before our jump; up to one that stops everything
	for _, line := range base {
		switch {
		case !strings.HasPrefix(line, "-A "): // the policy
		case jumpsTo(line, c.name):
			wrong, behind = append(wrong, line), others
		default:
			if others++; stop == 0 && c.place == beforeDropAll && dropsAll.MatchString(line) {
				stop = others
			}
		}
	}
	inPlace := slices.Equal(wrong, []string{jump}) && (stop == 0 || behind < stop) && (c.place != first || behind == 0)
	switch {
	case !want:
		return wrong, ""
	case inPlace:
		return nil, ""
	case c.place == first:
		return wrong, fmt.Sprintf("-I %s 1 -j %s", c.base, c.name)
	case stop > 0:
		return wrong, fmt.Sprintf("-I %s %d -j %s", c.base, stop, c.name)
	}
	return wrong, jump
}

func jumpsTo(line, target string) bool {
	words := strings.Fields(line)
	i := slices.Index(words, "-j")
	return i > 0 && i+1 < len(words) && words[i+1] == target
}

// run has iptables-restore commit input, leaving other chains alone.
func (f family) run(ctx context.Context, input string) error {
	path, err := exec.LookPath(f.restore)
	if err != nil {
		return fmt.Errorf("%s is not installed: install the package iptables", f.restore)
	}
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--noflush", "--wait", strconv.Itoa(lockWait))
	cmd.Stdin = strings.NewReader(input)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		text := strings.Join(strings.Fields(out.String()), " ")
		return fmt.Errorf("%s: %w: %s%s", f.restore, err, text, hint(text))
	}
	return nil
}

// hint explains the errors of iptables that say too little.
func hint(text string) string {
	switch {
	case strings.Contains(text, "incompatible"):
		return "; nftables rules in the table were not created by iptables: move them to another table"
	case strings.Contains(text, "xtables lock"):
		return fmt.Sprintf("; another process has held the lock /run/xtables.lock for %d s", lockWait)
	case strings.Contains(text, "Table does not exist"), strings.Contains(text, "can't initialize"):
		return "; the kernel lacks the table, or the wrong one of iptables-legacy and iptables-nft is used"
	case strings.Contains(text, "Permission denied"):
		return "; it needs root and the capability NET_ADMIN"
	}
	return ""
}
