package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// semantic is a version by https://semver.org, prefixed with v. Metadata ("+...") cannot be in an image's tag.
var semantic = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)` +
	`(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?$`)

// check returns the release's section of CHANGELOG.md, or all that is missing for a release.
func (r release) check() (notes string, err error) {
	if !semantic.MatchString(r.version) {
		return "", fmt.Errorf("%q is not a release version: make release VERSION=v0.1.0, with a semantic version (https://semver.org) "+
			"after the v, without metadata (+)", r.version)
	}
	notes, noNotes := r.notes()
	errs := []error{noNotes, r.checkClean(), r.tag()}
	if !slices.Contains([]string{"amd64", "arm64", "amd64 arm64", "arm64 amd64"}, strings.Join(r.arches, " ")) {
		errs = append(errs, fmt.Errorf("ARCHES=%q is not a list of architectures: amd64, arm64, or both", strings.Join(r.arches, " ")))
	}
	if exists(r.dir()) {
		errs = append(errs, fmt.Errorf("%s exists: remove it to build it again", r.dir()))
	}
	if r.key != "" {
		if said, err := exec.Command("ssh-keygen", "-l", "-f", r.key).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("SIGN_KEY=%s is not a key that ssh-keygen can read: %s (%w)", r.key,
				strings.TrimSpace(string(said)), err))
		}
	}
	return notes, errors.Join(errs...)
}

// notes is the release's section of CHANGELOG.md, with links that work outside of the repository.
func (r release) notes() (string, error) {
	text, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}
	var section strings.Builder
	within := false
	for line := range strings.Lines(string(text)) {
		if heading, is := strings.CutPrefix(line, "## "); is {
			words := strings.Fields(heading)
			within = len(words) > 0 && words[0] == r.version // a date may follow
			continue
		}
		if within {
			section.WriteString(line)
		}
	}
	body := strings.TrimSpace(section.String())
	if body == "" {
		return "", fmt.Errorf("CHANGELOG.md has no section %q with text: create it from what is under Unreleased, and commit it",
			"## "+r.version)
	}
	link := regexp.MustCompile(`\]\(([^():#]+[^():]*)\)`)
	body = link.ReplaceAllString(body, "](https://github.com/fairlead-cni/fairlead/blob/"+r.version+"/$1)")
	return "# Fairlead " + r.version + "\n\n" + body + "\n", nil
}

// checkClean refuses a working copy that differs from its commit.
func (r release) checkClean() error {
	changed, err := r.git("status", "--porcelain")
	if err == nil && changed != "" {
		err = fmt.Errorf("these differ from the commit: commit or remove them\n%s", changed)
	}
	return err
}

// tag refuses a version that another commit has. A release may be made before its tag.
func (r release) tag() error {
	there, err := r.git("tag", "--list", r.version)
	if err != nil || there == "" {
		return err
	}
	tagged, err := r.git("rev-parse", r.version+"^{commit}")
	head, err2 := r.git("rev-parse", "HEAD")
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	if tagged != head {
		return fmt.Errorf("the tag %s is on commit %s, but this is %s: git checkout %s, or choose another version", r.version,
			tagged, head, r.version)
	}
	return nil
}

func (r release) git(args ...string) (string, error) {
	c := exec.Command("git", args...)
	c.Dir = r.root
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimRight(string(out), "\n"), nil
}
