package manifests

import (
	"bytes"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// Render returns the objects as YAML documents that can be applied, in their
// order. Each needs its apiVersion and kind. What the API server fills in is
// left out: an empty status or spec, and anything null.
func Render(objects ...runtime.Object) ([]byte, error) {
	var out bytes.Buffer
	for i, object := range objects {
		kind := object.GetObjectKind().GroupVersionKind()
		if kind.Kind == "" || kind.Version == "" {
			return nil, fmt.Errorf("render object %d, a %T: it has no apiVersion and kind", i, object)
		}
		document, err := render(object)
		if err != nil {
			return nil, fmt.Errorf("render %s: %w", kind.Kind, err)
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(document)
	}
	return out.Bytes(), nil
}

func render(object runtime.Object) ([]byte, error) {
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // an integer must not come out as 1e+06
	var fields map[string]any
	if err := decoder.Decode(&fields); err != nil {
		return nil, err
	}
	dropNull(fields)
	for _, key := range []string{"spec", "status"} {
		if m, ok := fields[key].(map[string]any); ok && len(m) == 0 {
			delete(fields, key)
		}
	}
	return yaml.Marshal(fields)
}

// dropNull removes what is null, such as the creationTimestamp of a template.
func dropNull(value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, field := range v {
			if field == nil {
				delete(v, key)
				continue
			}
			dropNull(field)
		}
	case []any:
		for _, item := range v {
			dropNull(item)
		}
	}
}
