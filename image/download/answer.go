package download

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxRetryAfter bounds what a server may ask for.
const maxRetryAfter = time.Minute

// answer is a 200 or 206 whose body is about to be read.
type answer struct {
	address   string
	offset    int64 // of the body's first byte in the file
	total     int64 // of the file; -1: not told
	validator string
	body      *bufio.Reader

	close func()
	ctx   context.Context // ends with a cause when nothing comes
}

// ask sends one request, for what comes after offset if that is not 0.
func (f *Fetcher) ask(ctx context.Context, address string, offset int64, validator string) (*answer, error) {
	if err := Allowed(address, f.o.HTTP); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	end := func() { cancel(context.Canceled) }
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		end()
		return nil, refuse(address, "", "%w", err)
	}
	req.Header.Set("User-Agent", "upgrader")
	if offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
		if validator != "" {
			req.Header.Set("If-Range", validator)
		}
	}
	resp, err := f.client.Do(req)
	if err != nil {
		end()
		return nil, classify(address, err)
	}
	watched := &watchedReader{src: resp.Body, stall: f.o.Stall, timer: time.AfterFunc(f.o.Stall, func() { cancel(errStalled) })}
	a := &answer{
		address: address, total: resp.ContentLength, ctx: ctx,
		body: bufio.NewReaderSize(watched, 64<<10), validator: validatorOf(resp.Header),
		close: func() {
			watched.timer.Stop()
			_ = resp.Body.Close()
			end()
		},
	}
	if err := a.check(resp, offset); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

// check refuses all but the file, or the rest of it.
func (a *answer) check(resp *http.Response, offset int64) error {
	switch code := resp.StatusCode; {
	case code == http.StatusOK:
	case code == http.StatusPartialContent && offset > 0:
		if err := a.contentRange(resp.Header.Get("Content-Range"), offset); err != nil {
			return retriable(a.address, err)
		}
	case code == http.StatusRequestedRangeNotSatisfiable && offset > 0:
		return retriable(a.address, errOtherRange)
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500:
		err := retriable(a.address, fmt.Errorf("answers %s", resp.Status))
		err.after = retryAfter(resp.Header.Get("Retry-After"))
		return err
	case code == http.StatusNotFound:
		return refuse(a.address, "is there such a version, for this architecture? a mirror must have the file at this address", "answers %s", resp.Status)
	default:
		return refuse(a.address, "", "answers %s", resp.Status)
	}
	// Every file here is a program, an archive or a line of text.
	if first, _ := a.body.Peek(512); strings.HasPrefix(http.DetectContentType(first), "text/html") {
		return refuse(a.address, "open the address in a browser: a login page, a proxy or a mirror without the file may answer in its place",
			"answers with an HTML page")
	}
	return nil
}

// errOtherRange: what is there does not fit to what the server has.
var errOtherRange = errors.New("answers with another part than the one that is missing")

// contentRange reads "bytes 100-199/200".
func (a *answer) contentRange(header string, offset int64) error {
	unit, rest, _ := strings.Cut(header, " ")
	span, size, ok := strings.Cut(rest, "/")
	first, last, ok2 := strings.Cut(span, "-")
	start, err := strconv.ParseInt(first, 10, 64)
	end, err2 := strconv.ParseInt(last, 10, 64)
	if unit != "bytes" || !ok || !ok2 || err != nil || err2 != nil || start != offset || end < start {
		return fmt.Errorf("%w: Content-Range %.60q, from byte %d on was asked for", errOtherRange, header, offset)
	}
	a.offset, a.total = offset, -1
	if n, err := strconv.ParseInt(size, 10, 64); err == nil {
		if n != end+1 {
			return fmt.Errorf("%w: Content-Range %.60q", errOtherRange, header)
		}
		a.total = n
	}
	return nil
}

// failed is a body that did not come to its end.
func (a *answer) failed(err error) error {
	if cause := context.Cause(a.ctx); errors.Is(cause, errStalled) {
		err = cause
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the connection was cut")
	}
	return retriable(a.address, err)
}

// validatorOf is what If-Range may say: weak validators may not.
func validatorOf(h http.Header) string {
	if tag := h.Get("ETag"); tag != "" && !strings.HasPrefix(tag, "W/") {
		return tag
	}
	return h.Get("Last-Modified")
}

func retryAfter(header string) time.Duration {
	var d time.Duration
	if seconds, err := strconv.Atoi(header); err == nil {
		d = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(header); err == nil {
		d = time.Until(at)
	}
	return min(max(d, 0), maxRetryAfter)
}

// watchedReader puts its timer off with every byte.
type watchedReader struct {
	src   io.Reader
	stall time.Duration
	timer *time.Timer
}

func (r *watchedReader) Read(p []byte) (int, error) {
	n, err := r.src.Read(p)
	if n > 0 {
		r.timer.Reset(r.stall)
	}
	return n, err
}
