package conflist

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/atomicfile"
)

// Kept has for each installed plugin a file NAME.installed with the digests of the files installed under that name, the
// last one at the end, and NAME.before, a copy of the previous file, if there was one.

func (p Plugins) recordPath(name string) string { return filepath.Join(p.Kept, name+".installed") }
func (p Plugins) copyFile(name string) string   { return filepath.Join(p.Kept, name+".before") }

// program is a file as it was when it was read. Programs have megabytes, more than the agent's data of most clusters:
// they are read as a stream, and identified by their digests.
type program struct{ path, digest string }

func readProgram(path string) (program, error) {
	f, err := os.Open(path)
	if err != nil {
		return program{}, err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return program{}, err
	}
	return program{path, hex.EncodeToString(sum.Sum(nil))}, nil
}

// installed reports whether Fairlead has installed the file of that name in BinDir.
func (p Plugins) installed(name string) (bool, error) {
	note, err := os.ReadFile(p.recordPath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	there, err := readProgram(filepath.Join(p.BinDir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && strings.Contains(string(note), there.digest), err
}

// keep copies the existing file unless it is the new one. A copy kept earlier under that name was removed externally
// since.
func (p Plugins) keep(name string, comes program) error {
	path := filepath.Join(p.BinDir, name)
	there, err := readProgram(path)
	if errors.Is(err, fs.ErrNotExist) {
		return p.forget(name)
	}
	if err != nil || there.digest == comes.digest {
		return err
	}
	return duplicate(path, p.copyFile(name))
}

// duplicate makes the file, or the link, a copy of from.
func duplicate(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSymlink {
		content, err := os.Open(from)
		if err != nil {
			return err
		}
		defer content.Close()
		return atomicfile.Copy(to, content, info.Mode().Perm())
	}
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	made := filepath.Join(filepath.Dir(to), "."+filepath.Base(to)+".link.tmp")
	if err := os.Remove(made); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, made); err != nil {
		return err
	}
	return errors.Join(os.Rename(made, to), atomicfile.SyncDir(filepath.Dir(to)))
}

// forget removes copy and record.
func (p Plugins) forget(name string) error {
	for _, file := range []string{p.copyFile(name), p.recordPath(name)} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// recordInstall adds to the record that from is installed. The digest of the current file stays in it: if the process
// is killed before the new file is in place, the current one is still recognised.
func (p Plugins) recordInstall(name, path string, from program) error {
	lines := from.digest + "\n"
	if there, err := readProgram(path); err == nil && there.digest != from.digest {
		if ours, err := p.installed(name); err == nil && ours {
			lines = there.digest + "\n" + lines
		}
	}
	if old, err := os.ReadFile(p.recordPath(name)); err == nil && string(old) == lines {
		return nil
	}
	return atomicfile.Write(p.recordPath(name), []byte(lines), 0o644)
}

// Uninstall restores what was replaced, and removes what was added. Files that were installed there since are left
// alone. It returns what it did, as messages; with dryRun, what it would do.
func (p Plugins) Uninstall(dryRun bool) (did []string, err error) {
	notes, err := filepath.Glob(filepath.Join(p.Kept, "*.installed"))
	if err != nil {
		return nil, err
	}
	for _, note := range notes {
		name := strings.TrimSuffix(filepath.Base(note), ".installed")
		what, err := p.uninstall(name, dryRun)
		if err != nil {
			return did, fmt.Errorf("uninstalling the CNI plugin %s: %w", name, err)
		}
		did = append(did, what)
	}
	return did, nil
}

func (p Plugins) uninstall(name string, dryRun bool) (did string, err error) {
	path := filepath.Join(p.BinDir, name)
	ours, err := p.installed(name)
	if err != nil {
		return "", err
	}
	_, err = os.Lstat(p.copyFile(name))
	had := err == nil
	switch {
	case !ours:
		did = path + " kept: it is not the one that Fairlead installed"
	case had:
		did = path + " restored"
	default:
		did = path + " removed"
	}
	if dryRun {
		return did, nil
	}
	switch {
	case ours && had:
		err = duplicate(p.copyFile(name), path)
	case ours:
		err = errors.Join(os.Remove(path), atomicfile.SyncDir(p.BinDir))
	default:
		err = nil
	}
	if err != nil {
		return "", err
	}
	return did, p.forget(name)
}
