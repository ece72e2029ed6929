package kube

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func status(code int32) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Message: http.StatusText(int(code))}}
}

func request(err error) error { return &url.Error{Op: "Get", URL: "https://cp:6443/", Err: err} }

func TestTransient(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	for _, tc := range []struct {
		name string
		err  error
		want bool
	}{
		{"connection refused", request(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), true},
		{"connection reset", request(&net.OpError{Op: "read", Err: syscall.ECONNRESET}), true},
		{"connection closed", request(io.EOF), true},
		{"request timed out", request(context.DeadlineExceeded), true},
		{"too many requests", status(http.StatusTooManyRequests), true},
		{"internal error", status(http.StatusInternalServerError), true},
		{"bad gateway", status(http.StatusBadGateway), true},
		{"unavailable", status(http.StatusServiceUnavailable), true},
		{"gateway timeout", fmt.Errorf("get node: %w", status(http.StatusGatewayTimeout)), true},
		{"marked", Again(errors.New("cannot delete Pods: dial tcp: connection refused")), true},
		{"unauthorized", status(http.StatusUnauthorized), false},
		{"forbidden", apierrors.NewForbidden(nodes, "n", errors.New("no")), false},
		{"not found", apierrors.NewNotFound(nodes, "n"), false},
		{"conflict", apierrors.NewConflict(nodes, "n", errors.New("changed")), false},
		{"invalid", status(http.StatusUnprocessableEntity), false},
		{"foreign certificate", request(x509.UnknownAuthorityError{}), false},
		{"canceled", request(context.Canceled), false},
		{"something else", errors.New("no"), false},
	} {
		if got := Transient(tc.err); got != tc.want {
			t.Errorf("%s: transient is %t, want %t (%v)", tc.name, got, tc.want, tc.err)
		}
	}
}

func TestRetry(t *testing.T) {
	down := request(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})
	for _, tc := range []struct {
		name    string
		answers []error
		tries   int
		want    string
	}{
		{"at once", []error{nil}, 1, ""},
		{"after a while", []error{down, status(503), io.EOF, nil}, 4, ""},
		{"refused", []error{down, status(403)}, 2, "Forbidden"},
		{"never", []error{down}, 10, "enough; last: Get \"https://cp:6443/\": dial: connection refused"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			tries, pauses := 0, time.Duration(0)
			err := Retry(ctx, func(_ context.Context, d time.Duration) error {
				if pauses += d; pauses > 20*time.Second {
					cancel(errors.New("enough"))
				}
				return nil
			}, func(context.Context) error {
				tries++
				return tc.answers[min(tries, len(tc.answers))-1]
			})
			if tries != tc.tries || tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%d tries, %v; want %d, %q", tries, err, tc.tries, tc.want)
			}
		})
	}
}
