// Package strictjson reads JSON that was written by this program, and nothing
// that merely looks like it: two readers can not see two different documents in
// the same bytes. White space is free.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// ErrSpelling is what is valid JSON for a value, and not what it is written as.
var ErrSpelling = errors.New("has repeated, missing or unusually spelled keys or values")

// Unmarshal reads data into v, a pointer. An unknown, missing, repeated or
// differently spelled key, an escaped character that need not be escaped, and
// anything after the end are errors.
func Unmarshal(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	// encoding/json lets repeated, missing and oddly spelled keys pass. Written
	// again, it must be what was read.
	again, err := Marshal(v, "")
	if err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, data); err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	if !bytes.Equal(bytes.TrimSpace(again), compact.Bytes()) {
		return ErrSpelling
	}
	return nil
}

// Marshal writes what Unmarshal reads.
func Marshal(v any, indent string) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
