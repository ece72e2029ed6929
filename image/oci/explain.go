package oci

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// explain says what went wrong with a registry, and what to do.
func explain(what string, repo name.Repository, err error) error {
	if isMissing(err) {
		err = fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	err = fmt.Errorf("%s: %w", what, err)
	if hint := hintFor(repo.RegistryStr(), err); hint != "" {
		return &Error{err, hint}
	}
	return err
}

func hintFor(registry string, err error) string {
	var (
		answer    *transport.Error
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		dns       *net.DNSError
	)
	switch {
	case errors.Is(err, context.Canceled):
		return ""
	case errors.As(err, &authority):
		return "its certificate is of no authority that this machine knows: give the authority's with --registry-ca FILE"
	case errors.As(err, &host):
		return "its certificate is for another name: use that name, or have the certificate made for " + registry
	case errors.As(err, &invalid):
		return "its certificate has expired or is not for a server: have it renewed, and look at this machine's clock"
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return "it does not speak TLS: if passwords and images may go over this network in the clear, give --plain-http"
	case errors.As(err, &answer):
		return answerHint(registry, answer.StatusCode)
	case errors.Is(err, errPlainHTTP):
		return "the registry cannot be reached by HTTPS: if passwords and images may go over this network in the clear, give --plain-http"
	case errors.As(err, &dns):
		return "is the registry's name right, and known to this machine's name server?"
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "is the registry's address right, and does it run?"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.EPIPE):
		return "the connection was cut: the same command again goes on with what is missing"
	default:
		return ""
	}
}

func answerHint(registry string, status int) string {
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return "log in with `docker login " + registry + "`, or `skopeo login`, as somebody who may do this; what is read is $DOCKER_CONFIG/config.json or ~/.docker/config.json, and only where there is neither REGISTRY_AUTH_FILE: after podman or skopeo login as root it is /run/containers/0/auth.json"
	case status == http.StatusNotFound:
		return "there is no such image or repository: look at its name and tag"
	case status == http.StatusRequestEntityTooLarge:
		return "the registry, or a proxy before it, refuses blobs of this size: raise its limit (client_max_body_size of nginx)"
	case status == http.StatusTooManyRequests || status >= http.StatusInternalServerError:
		return "the registry is overloaded, full or broken: look at its log; the same command again goes on with what is missing"
	default:
		return ""
	}
}
