package apitest

import (
	"context"
	"fmt"
	"os"
)

// Apply applies the objects of a manifest file that match the label selector: see objects.Client.Apply.
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
	_, err := s.objects.Apply(ctx, manifest, selector)
	return err
}

// Definitions are the custom resource definitions, for Objects.
const Definitions = "customresourcedefinitions.v1.apiextensions.k8s.io"
