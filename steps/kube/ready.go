package kube

import (
	"context"
	"fmt"

	"k8s.io/client-go/kubernetes"
)

// Ready is nil when the API server calls itself ready (/readyz).
func Ready(ctx context.Context, client kubernetes.Interface) error {
	rest := client.Discovery().RESTClient()
	if rest == nil { // a fake of client-go has none
		_, err := client.Discovery().ServerVersion()
		return err
	}
	if err := rest.Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
		return fmt.Errorf("ask the API server whether it is ready: %w", err)
	}
	return nil
}
