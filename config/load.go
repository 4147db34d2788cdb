package config

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/fairlead-cni/fairlead/api"
)

// Load reads and validates the agent's config file. The findings are warnings for the log and the user. The error is of
// type Errors if the content is invalid; if the file could not be read it wraps the reason, such as fs.ErrNotExist.
func Load(path string) (api.AgentConfig, []Finding, error) {
	data, err := read(path)
	if err != nil {
		return api.AgentConfig{}, nil, fmt.Errorf("reading the config: %w", err)
	}
	return Parse(data, path)
}

// LoadController reads and validates the controller's config file. Its results are like those of Load.
func LoadController(path string) (api.ControllerConfig, []Finding, error) {
	data, err := read(path)
	if err != nil {
		return api.ControllerConfig{}, nil, fmt.Errorf("reading the controller's config: %w", err)
	}
	return ParseController(data, path)
}

func read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, &os.PathError{Op: "read", Path: path, Err: errors.New("is a directory: name the file in it")}
	case !info.Mode().IsRegular():
		// A pipe would block, and a device may never end.
		return nil, &os.PathError{Op: "read", Path: path, Err: errors.New("is not a regular file")}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// One byte more than allowed, so that Parse detects that it is too large.
	return io.ReadAll(io.LimitReader(f, MaxSize+1))
}
