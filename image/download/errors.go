package download

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"
)

// Error says why an address did not give what it should.
type Error struct {
	URL  string // Redacted
	Err  error
	Hint string // what to do about it; may be empty

	permanent bool          // trying again is of no use
	after     time.Duration // the server's wish, 0: none
}

func (e *Error) Error() string { return fmt.Sprintf("download %s: %v", e.URL, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// Advice is what to do about it.
func (e *Error) Advice() string { return e.Hint }

var (
	errStalled  = errors.New("nothing has come for too long")
	errTooLarge = errors.New("is larger than a file may be")
)

func refuse(address, hint, format string, args ...any) *Error {
	return &Error{URL: Redacted(address), Err: fmt.Errorf(format, args...), Hint: hint, permanent: true}
}

func retriable(address string, err error) *Error { return &Error{URL: Redacted(address), Err: err} }

// Redacted is an address as it may be shown: without what may be a secret in it,
// and not at all where nobody can tell what is.
func Redacted(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "(not shown, as it may have a password)"
	}
	if u.User != nil {
		u.User = url.User("xxxxx")
	}
	if u.RawQuery != "" { // a redirect may be signed
		u.RawQuery = "xxxxx"
	}
	u.Fragment = ""
	return u.String()
}

// classify wraps what the HTTP client says.
func classify(address string, err error) *Error {
	var own *Error
	if errors.As(err, &own) { // of the check of redirects
		return own
	}
	var urlError *url.Error
	if errors.As(err, &urlError) { // it names the address once more
		err = urlError.Err
	}
	result := retriable(address, err)
	var (
		certificate *tls.CertificateVerificationError
		dns         *net.DNSError
	)
	switch {
	case errors.As(err, &certificate):
		result.permanent = true
		result.Hint = "if a proxy or mirror has a certificate of your own authority: SSL_CERT_FILE=/path/to/ca.pem"
	case errors.As(err, &dns) && dns.IsNotFound:
		result.permanent = true
		result.Hint = "without a way to the Internet give --mirror URL, or build --from a directory"
	}
	return result
}
