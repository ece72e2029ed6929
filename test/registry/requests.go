package registry

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// Request is one that the registry has answered.
type Request struct {
	Remote string // address of the client, without a port
	Method string
	Path   string // with the query
	Status int
	Bytes  int64 // of the answer
}

// accessLine is Apache's combined log format.
var accessLine = regexp.MustCompile(`(?m)^(\S+) - \S+ \[[^]]+\] "(\S+) (\S+) HTTP/[0-9.]+" (\d+) (\d+) `)

// Requests are all that were answered until now, in their order.
func (r *Registry) Requests() ([]Request, error) {
	text, err := os.ReadFile(r.file("log"))
	if err != nil {
		return nil, err
	}
	var all []Request
	for _, m := range accessLine.FindAllStringSubmatch(string(text), -1) {
		status, err := strconv.Atoi(m[4])
		if err != nil {
			return nil, err
		}
		n, err := strconv.ParseInt(m[5], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("size in %q: %w", m[0], err)
		}
		all = append(all, Request{m[1], m[2], m[3], status, n})
	}
	return all, nil
}

// Pulled adds up the blobs that were sent to clients.
func Pulled(all []Request) (bytes int64, blobs int) {
	for _, r := range all {
		if r.Method == "GET" && r.Status == 200 && strings.Contains(r.Path, "/blobs/sha256:") {
			bytes += r.Bytes
			blobs++
		}
	}
	return bytes, blobs
}
