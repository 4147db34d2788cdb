package kube

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Reached returns nil if the API server responds, with any status.
func (c *Client) Reached(ctx context.Context) error {
	err := c.Kubernetes.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error()
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return nil
	}
	return err
}
