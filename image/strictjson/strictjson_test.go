package strictjson

import (
	"errors"
	"testing"
)

type document struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
}

func TestUnmarshal(t *testing.T) {
	tests := []struct {
		data         string
		ok, spelling bool
	}{
		{`{"name":"a","count":1}`, true, false},
		{"\n{ \"name\" : \"a\",\n\"count\" : 1 }\n", true, false},
		{`{"name":"a<b","count":1}`, true, false},
		{`{"count":1,"name":"a"}`, false, true},
		{`{"name":"a"}`, false, true},
		{`{"name":"a","count":1,"name":"a"}`, false, true},
		{`{"Name":"a","count":1}`, false, true},
		{`{"name":"\u0061","count":1}`, false, true},
		{`{"name":"a","count":1,"more":2}`, false, false},
		{`{"name":"a","count":1}{}`, false, false},
		{`{"name":"a","count":"1"}`, false, false},
		{`{"name":`, false, false},
		{``, false, false},
	}
	for _, test := range tests {
		var d document
		err := Unmarshal([]byte(test.data), &d)
		if (err == nil) != test.ok || errors.Is(err, ErrSpelling) != test.spelling {
			t.Errorf("%s: got %v", test.data, err)
		}
		if again, err := Marshal(d, ""); test.ok && (err != nil || Unmarshal(again, &d) != nil) {
			t.Errorf("%s: written as %s, %v", test.data, again, err)
		}
	}
}
