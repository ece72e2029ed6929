package upstream

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
)

// maxChecksums bounds a published text with checksums; runc's has ten lines.
const maxChecksums = 64 << 10

var (
	bareSum  = regexp.MustCompile(`^[0-9a-fA-F]{64}$`)
	namedSum = regexp.MustCompile(`^([0-9a-fA-F]{64}) [ *](\S+)$`)
)

// findChecksum reads what sha256sum writes, or a sum alone as Kubernetes
// publishes it, and returns the one for a file. Other lines, such as a
// signature's, are not looked at.
func findChecksum(text, file string) (string, error) {
	if sum := strings.TrimSpace(text); bareSum.MatchString(sum) {
		return strings.ToLower(sum), nil
	}
	found := ""
	for line := range strings.Lines(text) {
		m := namedSum.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if m == nil || path.Base(m[2]) != file {
			continue
		}
		sum := strings.ToLower(m[1])
		if found != "" && found != sum {
			return "", fmt.Errorf("has two sha256 for %s", file)
		}
		found = sum
	}
	if found == "" {
		return "", errors.New("has no sha256 for " + file)
	}
	return found, nil
}
