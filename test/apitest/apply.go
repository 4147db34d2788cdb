package apitest

import (
	"context"
	"fmt"
	"os"

	"github.com/fairlead-cni/fairlead/test/objects"
)

// Apply makes the objects of the manifest in a file that the label selector chooses be as they are there: see
// objects.Apply.
func (s *Server) Apply(ctx context.Context, file, selector string) error {
	manifest, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := s.ApplyManifest(ctx, manifest, selector); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// ApplyManifest does what Apply does.
func (s *Server) ApplyManifest(ctx context.Context, manifest []byte, selector string) error {
	return objects.Apply(ctx, s.objects, manifest, selector)
}

// Clear deletes all objects of these resources: see objects.Clear.
func (s *Server) Clear(ctx context.Context, resources ...string) error {
	return objects.Clear(ctx, s.objects, resources...)
}
