package inputs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/kube/feed"
)

// maxManifestBytes is far above any real manifest; a larger file is a mistake and would only consume memory.
const maxManifestBytes = 16 << 20

// quietTime is how long the directory must be quiet before it is read, so that one `cp` of many files is one change.
const quietTime = 50 * time.Millisecond

// Directory is a Source that reads every *.yaml, *.yml and *.json file of one directory, and reads them again when the
// directory changes. Replace files by rename: a file that is read half-written and does not parse keeps its last good
// content.
type Directory struct {
	// Intervals are api.DefaultIntervals unless set before Run.
	Intervals api.InputIntervals

	path    string
	log     logr.Logger
	reading sync.Mutex         // held while the directory is read
	good    map[string]objects // the last good content of each file
	last    atomic.Pointer[Snapshot]
	changed chan struct{}
	// services are handled like those of the API server.
	services *Services
	judged   *feed.Objects
}

// NewDirectory reads the directory once. A file that cannot be used is an error here: a start must not drop objects
// that the file had before.
func NewDirectory(path string, log logr.Logger) (*Directory, error) {
	d := &Directory{Intervals: api.DefaultIntervals().Inputs,
		path: path, log: log, good: map[string]objects{}, changed: make(chan struct{}, 1), services: newServices(),
		judged: feed.New()}
	d.judged.Complete = true
	d.last.Store(&Snapshot{})
	if err := d.read(); err != nil {
		return nil, err
	}
	if p := d.Snapshot().Problems; len(p) > 0 {
		return nil, errors.New(strings.Join(p, "; "))
	}
	return d, nil
}

// Snapshot implements Source.
func (d *Directory) Snapshot() *Snapshot { return d.last.Load() }

// Refresh reads the directory now.
func (d *Directory) Refresh() *Snapshot {
	if err := d.read(); err != nil {
		d.log.Error(err, "reading manifests failed, the last valid ones stay in effect")
	}
	return d.Snapshot()
}

// Pod implements Source. A pod without a manifest exists nevertheless: manifests of Pods are optional.
func (d *Directory) Pod(_ context.Context, namespace, name, uid string) (Pod, Namespace, error) {
	s := d.Snapshot()
	if p, found := s.Pods[namespace+"/"+name]; !found || !p.is(uid) {
		s = d.Refresh()
	}
	return s.Pods[namespace+"/"+name], s.Namespaces[namespace], nil
}

// Changed implements Source.
func (d *Directory) Changed() <-chan struct{} { return d.changed }

// PolicyObjects implements Source.
func (d *Directory) PolicyObjects() *feed.Objects { return d.judged }

// Services implements Source.
func (d *Directory) Services() *Services { return d.services }

func (d *Directory) String() string { return "the manifests in " + d.path }

// Run implements Source. It reads the directory again every Intervals.Reread for changes without an inotify event: NFS
// and some overlay file systems send none, and a directory that was replaced loses its watch.
func (d *Directory) Run(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching %s: %w (is the limit fs.inotify.max_user_instances or max_user_watches reached?)", d.path, err)
	}
	defer w.Close()
	if err := w.Add(d.path); err != nil {
		return fmt.Errorf("watching %s: %w (is the limit fs.inotify.max_user_instances or max_user_watches reached?)", d.path, err)
	}
	tick := time.NewTicker(d.Intervals.Reread)
	defer tick.Stop()
	quiet := time.NewTimer(0) // for changes between NewDirectory and the watch
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
			quiet.Reset(quietTime)
			continue
		case err := <-w.Errors:
			d.log.Error(err, "watching the manifest directory failed", "directory", d.path)
		case <-tick.C:
			// Adding a watched path has no effect; one that was replaced is watched again.
			if err := w.Add(d.path); err != nil {
				d.log.Error(err, "watching the manifest directory failed", "directory", d.path)
			}
		case <-quiet.C:
		}
		d.Refresh()
	}
}

// read reads all files and publishes the snapshot if it differs. On an error the directory as a whole could not be
// read, and nothing changes.
func (d *Directory) read() error {
	d.reading.Lock()
	defer d.reading.Unlock()
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return fmt.Errorf("reading the manifests: %w", err)
	}
	good := map[string]objects{}
	var problems []string
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			continue
		}
		objs, err := readManifest(filepath.Join(d.path, name))
		if errors.Is(err, fs.ErrNotExist) { // deleted since ReadDir
			continue
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", filepath.Join(d.path, name), err))
			before, had := d.good[name]
			if !had {
				continue
			}
			objs = before
		}
		good[name] = objs
	}
	d.publish(good, problems)
	return nil
}

func readManifest(path string) (objects, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	if info.Size() > maxManifestBytes {
		return nil, fmt.Errorf("%d bytes: larger than a manifest may be (%d)", info.Size(), maxManifestBytes)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseManifest(data)
}

func (d *Directory) publish(good map[string]objects, problems []string) {
	d.good = good
	next, double := merge(good)
	next.Problems = append(problems, double...)
	before := d.last.Load()
	if equal(before, next) {
		return
	}
	for _, p := range next.Problems {
		if !slices.Contains(before.Problems, p) {
			d.log.Info("manifest rejected, its last valid content stays in effect", "problem", p)
		}
	}
	d.last.Store(next)
	d.services.replace(next.services, next.endpointSlices)
	d.judged.Replace(before.judged(), next.judged())
	select {
	case d.changed <- struct{}{}:
	default:
	}
}
