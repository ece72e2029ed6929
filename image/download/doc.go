// Package download fetches files whose sha256 is known into a cache that is
// addressed by it.
//
// # The cache
//
//	<dir>/<sha256>           a file, whole and right
//	<dir>/<sha256>.partial   what has come of one so far
//	<dir>/<sha256>.validator the ETag or date that it came with
//
// A file gets its name in one rename, after its bytes were hashed and synced, and
// is hashed again when it is found there later. One that is wrong is removed.
// Partial files are locked: of two processes that want the same file, one waits
// for the other. Files may be executed (0755): they are programs or archives of
// programs. Nothing is ever removed for room; the directory may be removed at
// any time.
//
// # A download
//
// What has come is kept when a download is cut, stalls or is interrupted, and the
// rest is asked for with Range and If-Range. A server that does not know ranges,
// or has another file by now, sends all of it, and all of it is taken anew. A
// file that was put together from several answers and is wrong is fetched once
// more in one piece; one that came in one piece and is wrong is refused.
//
// Cuts, stalls, refused connections, 408, 429 and 5xx are tried again, with
// growing pauses or after Retry-After; an attempt that brought something starts
// the count anew. Everything else is refused at once: 404, an HTML page, a file
// larger than the limit, a loop of redirects, a certificate that is not trusted.
//
// https only, unless Options.HTTP allows http; http is always allowed to the
// machine itself. Proxies come from the environment, as Go has it (HTTPS_PROXY,
// NO_PROXY), and so do additional certificate authorities (SSL_CERT_FILE).
package download
