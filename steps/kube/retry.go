package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The pauses of Retry.
const (
	firstPause = 250 * time.Millisecond
	lastPause  = 4 * time.Second
)

// Retry calls f again, with growing pauses, as long as its error is Transient
// and ctx lasts. When ctx ends the error has both ctx's cause and f's last
// error. On the only control plane the API server is away for a while in every
// upgrade; that is no failure.
func Retry(ctx context.Context, sleep func(context.Context, time.Duration) error, f func(context.Context) error) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := f(ctx)
		if err == nil || ctx.Err() == nil && !Transient(err) {
			return err
		}
		if ctx.Err() != nil || sleep(ctx, pause) != nil {
			return fmt.Errorf("%w; last: %w", context.Cause(ctx), err)
		}
	}
}

// Again marks an error as one that asking again may mend, where its text is all
// that is left of it.
func Again(err error) error { return &again{err} }

type again struct{ error }

func (a *again) Unwrap() error { return a.error }

// Transient tells whether the same request may succeed later without anybody
// changing anything: no connection, a connection that broke, an overloaded or
// unready API server. A refusal (forbidden, not found, conflict, invalid, an
// unknown certificate authority) is not.
func Transient(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return slices.Contains([]int32{
			http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
			http.StatusServiceUnavailable, http.StatusGatewayTimeout,
		}, status.Status().Code)
	}
	var marked *again
	if errors.As(err, &marked) {
		return true
	}
	var (
		verification *tls.CertificateVerificationError
		authority    x509.UnknownAuthorityError
		canceled     = errors.Is(err, context.Canceled)
	)
	if canceled || errors.As(err, &verification) || errors.As(err, &authority) {
		return false
	}
	var (
		urlErr *url.Error
		netErr net.Error
	)
	return errors.As(err, &urlErr) || errors.As(err, &netErr) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded)
}
