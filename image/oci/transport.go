package oci

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"

	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// newTransport trusts the system's certificate authorities and those of a file.
func newTransport(o RegistryOptions) (http.RoundTripper, error) {
	base, ok := remote.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, errors.New("the registry client has no transport")
	}
	base = base.Clone()
	base.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pool, err := x509.SystemCertPool()
		if err != nil {
			return nil, fmt.Errorf("certificate authorities of the system: %w", err)
		}
		data, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("certificate authority of the registry: %w", err)
		}
		if !pool.AppendCertsFromPEM(data) {
			return nil, &Error{
				fmt.Errorf("certificate authority of the registry: %s has no certificate in PEM", o.CAFile),
				"give the file that begins with -----BEGIN CERTIFICATE-----",
			}
		}
		base.TLSClientConfig.RootCAs = pool
	}
	return guard{base, o.PlainHTTP}, nil
}

var errPlainHTTP = errors.New("plain HTTP is not allowed")

// guard keeps everything but a loopback address from being asked in the clear.
// The library does that by itself for private addresses and .local names when
// HTTPS fails or is slow, and would follow a redirect there.
type guard struct {
	next  http.RoundTripper
	plain bool
}

func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !g.plain && !loopback(req.URL.Hostname()) {
		return nil, fmt.Errorf("%s://%s: %w", req.URL.Scheme, req.URL.Host, errPlainHTTP)
	}
	return g.next.RoundTrip(req)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
