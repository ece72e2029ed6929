package download

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	tests := []struct {
		name string
		b    behaviour
		want string
	}{
		{"good", func(w http.ResponseWriter, _ *http.Request, _ int) bool { return says(w, "abc\n") }, ""},
		{"503 once", func(w http.ResponseWriter, r *http.Request, n int) bool {
			if n == 0 {
				return status(503)(w, r, n)
			}
			return says(w, "abc\n")
		}, ""},
		{"page", func(w http.ResponseWriter, _ *http.Request, _ int) bool { return says(w, "<html>") }, "HTML page"},
		{"404", status(404), "404"},
		{"cut", func(w http.ResponseWriter, _ *http.Request, _ int) bool {
			w.Header().Set("Content-Length", "10")
			return says(w, "abc")
		}, "was cut (tried 2 times)"},
		{"endless", func(w http.ResponseWriter, _ *http.Request, _ int) bool {
			for {
				if _, err := fmt.Fprintln(w, strings.Repeat("x", 1000)); err != nil {
					return true
				}
			}
		}, "more than 100 bytes"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := serve(t, nil, test.b)
			f, _ := fetcher(t, Options{Attempts: 2})
			text, err := f.Text(t.Context(), s.URL, 100)
			if test.want == "" && (err != nil || text != "abc\n") || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %q, %v", text, err)
			}
		})
	}
}

func TestAllowed(t *testing.T) {
	for address, http := range map[string]bool{
		"https://dl.k8s.io/x": false, "http://127.0.0.1:1/x": false, "http://[::1]/": false, "http://localhost/": false,
		"http://mirror.example/": true,
	} {
		if err := Allowed(address, http); err != nil {
			t.Error(err)
		}
	}
	for address, http := range map[string]bool{
		"http://mirror.example/": false, "http://127.0.0.1.example/": false, "ftp://a/": true, "/etc/passwd": true, "https:///x": true, "%": true, "": true,
	} {
		if err := Allowed(address, http); err == nil {
			t.Errorf("%s is allowed", address)
		}
	}
}

// No password gets into an error, which ends up in logs.
func TestPassword(t *testing.T) {
	s := serve(t, nil, func(w http.ResponseWriter, r *http.Request, n int) bool {
		if user, password, ok := r.BasicAuth(); !ok || user != "me" || password != "secret" {
			return status(403)(w, r, n)
		}
		return status(404)(w, r, n)
	})
	f, _ := fetcher(t, Options{})
	for _, host := range []string{s.Listener.Addr().String(), "127.0.0.1:1"} {
		f.o.Attempts = 1
		_, err := f.Fetch(t.Context(), []File{{"x", "http://me:secret@" + host + "/x", sumOf(nil)}})
		if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "403") {
			t.Errorf("got %v", err)
		}
	}
}

// What may have a password is not shown, least of all where it is spelled wrong.
func TestPasswordsAreNotShown(t *testing.T) {
	for _, address := range []string{
		"https://me:sec%ret@mirror.example/x", "https://me:sec/ret@mirror.example/x", "https://me:sec ret@mirror.example/x",
		"https://me:sec\nret@mirror.example/", "me:secret@mirror.example", "https:me:secret@mirror.example", "//me:secret@mirror.example/x",
		"secret:x@mirror.example", "ftp://secret@mirror.example/x", "ftp://mirror.example/x?token=secret#secret",
	} {
		err := Allowed(address, true)
		var own *Error
		if !errors.As(err, &own) || strings.Contains(err.Error()+own.Hint, "sec") || own.Hint == "" {
			t.Errorf("got %v", err)
		}
		if shown := Redacted(address); strings.Contains(shown, "sec") {
			t.Errorf("shows %s", shown)
		}
	}
	const good = "https://mirror.example:8443/dl.k8s.io/x"
	if Redacted(good) != good {
		t.Errorf("%s is shown as %s", good, Redacted(good))
	}
}

// A certificate that nobody vouches for is refused, at once.
func TestCertificate(t *testing.T) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	f, _ := fetcher(t, Options{})
	_, err := f.Fetch(t.Context(), []File{{"x", s.URL, sumOf(nil)}})
	var own *Error
	if !errors.As(err, &own) || !own.permanent || !strings.Contains(own.Advice(), "SSL_CERT_FILE") {
		t.Errorf("got %v", err)
	}
}
