package download

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
)

// Options say how it is fetched. The zero value of each but Cache has a default.
type Options struct {
	Cache    string        // directory; made when it is missing
	HTTP     bool          // http is allowed to other machines too
	MaxSize  int64         // of a file; 1 GiB
	Parallel int           // files at a time; 4
	Stall    time.Duration // this long without a byte is a failed attempt; 30 s
	Attempts int           // failed ones in a row, with nothing that came; 6
	Pause    time.Duration // after the first of them; 500 ms, then growing
	Log      *slog.Logger
	// Progress is told how many bytes there are of all files, one call at a time.
	// The total grows as servers tell sizes.
	Progress func(done, total int64)
}

// File is what is wanted.
type File struct {
	Name   string // for messages
	URL    string
	SHA256 string // 64 lower-case hex digits
}

// Fetcher fetches; it may be used by several goroutines.
type Fetcher struct {
	o      Options
	client *http.Client
	count  *gauges
}

// New makes the cache's directory and returns a Fetcher for it.
func New(o Options) (*Fetcher, error) {
	if o.Cache == "" {
		return nil, errors.New("download: no directory for the cache")
	}
	if err := os.MkdirAll(o.Cache, 0o755); err != nil {
		return nil, fmt.Errorf("make the download cache: %w", err)
	}
	defaults(&o.MaxSize, 1<<30)
	defaults(&o.Parallel, 4)
	defaults(&o.Stall, 30*time.Second)
	defaults(&o.Attempts, 6)
	defaults(&o.Pause, 500*time.Millisecond)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	f := &Fetcher{o: o, count: newGauges(o.Progress)}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: o.Stall}).DialContext,
		TLSHandshakeTimeout:   o.Stall,
		ResponseHeaderTimeout: o.Stall,
		IdleConnTimeout:       o.Stall,
		MaxIdleConnsPerHost:   o.Parallel,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true, // the bytes as they are, and their number
	}
	f.client = &http.Client{Transport: transport, CheckRedirect: f.checkRedirect}
	return f, nil
}

func defaults[T int | int64 | time.Duration](value *T, otherwise T) {
	if *value == 0 {
		*value = otherwise
	}
}

// Fetch returns the paths of the files in the cache, in the order of files. What
// is there already is not fetched. The first error ends it; what has come of the
// others is kept.
func (f *Fetcher) Fetch(ctx context.Context, files []File) ([]string, error) {
	paths := make([]string, len(files))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(f.o.Parallel)
	for i, file := range files {
		g.Go(func() error {
			var err error
			if paths[i], err = f.one(ctx, file); err != nil {
				return fmt.Errorf("%s: %w", file.Name, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return paths, nil
}

// Text returns a small text, of at most limit bytes, such as a published
// checksum. It is not cached.
func (f *Fetcher) Text(ctx context.Context, address string, limit int64) (string, error) {
	var text []byte
	err := f.retry(ctx, address, func() (bool, error) {
		a, err := f.ask(ctx, address, 0, "")
		if err != nil {
			return false, err
		}
		defer a.close()
		if text, err = io.ReadAll(io.LimitReader(a.body, limit+1)); err != nil {
			return false, a.failed(err)
		}
		if int64(len(text)) > limit {
			return false, refuse(address, "", "%w: more than %d bytes", errTooLarge, limit)
		}
		return true, nil
	})
	return string(text), err
}

func (f *Fetcher) path(sha256, suffix string) string {
	return filepath.Join(f.o.Cache, sha256+suffix)
}

const hintAddress = "write https://host/path; in a password, other characters than letters and digits as %XX"

// Allowed tells whether an address may be asked.
func Allowed(address string, http bool) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Opaque != "": // the error would show it, and me:password@host has a scheme
		return refuse(address, hintAddress, "is not an address")
	case u.Scheme != "https" && u.Scheme != "http":
		return refuse(address, hintAddress, "scheme %q is not known", u.Scheme)
	case u.Host == "":
		return refuse(address, hintAddress, "has no host")
	case u.Scheme == "https", u.Scheme == "http" && (http || loopback(u.Hostname())):
		return nil
	}
	return refuse(address, "use https", "http is not allowed: anybody on the way could change what comes")
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (f *Fetcher) checkRedirect(next *http.Request, via []*http.Request) error {
	address := next.URL.String()
	if len(via) >= 10 {
		return refuse(via[0].URL.String(), "is the address right? ask the one who runs that server", "redirects more than %d times", len(via))
	}
	return Allowed(address, f.o.HTTP)
}
