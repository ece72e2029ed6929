package steps

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// unitArgs is what systemd gives the unit's program at its next start, its name
// aside: the last ExecStart with the variables of Environment= and
// EnvironmentFile= in their places, as systemd.service(5) has it. It is not the
// running process's command line: the files may have changed since.
//
// edit, when set, may change what a file sets.
func unitArgs(host hostexec.FS, u hostexec.Unit, edit func(file string, vars map[string]string)) ([]string, error) {
	if len(u.ExecStart) == 0 || len(u.ExecStart[len(u.ExecStart)-1]) == 0 {
		return nil, fmt.Errorf("%s: no ExecStart", u.Name)
	}
	vars, err := unitVars(host, u, edit)
	if err != nil {
		return nil, err
	}
	var args []string
	for _, word := range u.ExecStart[len(u.ExecStart)-1][1:] {
		if name, ok := strings.CutPrefix(word, "$"); ok && variable.MatchString(name) {
			args = append(args, splitWords(vars[name])...)
			continue
		}
		args = append(args, braced.ReplaceAllStringFunc(word, func(ref string) string {
			if ref == "$$" {
				return "$"
			}
			return vars[ref[2:len(ref)-1]]
		}))
	}
	return args, nil
}

var (
	variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	braced   = regexp.MustCompile(`\$\$|\$\{[A-Za-z_][A-Za-z0-9_]*\}`)
)

// unitVars are the unit's variables; a file's win over Environment='s.
func unitVars(host hostexec.FS, u hostexec.Unit, edit func(file string, vars map[string]string)) (map[string]string, error) {
	vars := map[string]string{}
	for _, kv := range u.Environment {
		if name, value, ok := strings.Cut(kv, "="); ok {
			vars[name] = value
		}
	}
	for _, f := range u.EnvFiles {
		data, err := host.ReadFile(f.Path)
		if errors.Is(err, os.ErrNotExist) && f.Optional {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: read its EnvironmentFile: %w", u.Name, err)
		}
		set := parseEnvFile(string(data))
		if edit != nil {
			edit(f.Path, set)
		}
		for name, value := range set {
			vars[name] = value
		}
	}
	return vars, nil
}

// parseEnvFile reads a file for EnvironmentFile= by systemd's rules
// (parse_env_file_internal in its src/basic/env-file.c): one variable a line,
// comments with # or ;, quotes at the beginning of a value, a backslash before
// the line's end goes on. What is no variable's name is left out, as systemd
// does.
func parseEnvFile(data string) map[string]string {
	type state int
	const (
		preKey state = iota
		key
		preValue
		value
		valueEscape
		single
		double
		doubleEscape
		comment
		commentEscape
	)
	vars := map[string]string{}
	var name, text strings.Builder
	trimmed := 0 // the length of text up to its last character that counts
	at := preKey
	push := func() {
		if n := strings.TrimRight(name.String(), " \t\r"); variable.MatchString(n) {
			vars[n] = text.String()[:trimmed]
		}
		name.Reset()
		text.Reset()
		trimmed, at = 0, preKey
	}
	add := func(c rune, blank bool) {
		text.WriteRune(c)
		if !blank {
			trimmed = text.Len()
		}
	}
	for _, c := range data {
		newline, blank := c == '\n' || c == '\r', c == ' ' || c == '\t' || c == '\n' || c == '\r'
		switch at {
		case preKey:
			switch {
			case c == '#' || c == ';':
				at = comment
			case !blank:
				at = key
				name.WriteRune(c)
			}
		case key:
			switch {
			case newline:
				name.Reset()
				at = preKey
			case c == '=':
				at = preValue
			default:
				name.WriteRune(c)
			}
		case preValue, value:
			switch {
			case newline:
				push()
			case c == '\\':
				at = valueEscape
			case at == preValue && c == '\'':
				at = single
			case at == preValue && c == '"':
				at = double
			case at == preValue && blank:
			default:
				at = value
				add(c, blank)
			}
		case valueEscape:
			at = value
			if !newline {
				add(c, false)
			}
		case single:
			if c == '\'' {
				at = preValue
			} else {
				add(c, false)
			}
		case double:
			switch c {
			case '"':
				at = preValue
			case '\\':
				at = doubleEscape
			default:
				add(c, false)
			}
		case doubleEscape:
			at = double
			switch {
			case strings.ContainsRune("\"\\`$", c):
				add(c, false)
			case !newline:
				add('\\', false)
				add(c, false)
			}
		case comment:
			switch {
			case c == '\\':
				at = commentEscape
			case newline:
				at = preKey
			}
		case commentEscape: // since systemd 254 it does not go on with the next line
			if at = comment; newline {
				at = preKey
			}
		}
	}
	if at != preKey && at != key && at != comment && at != commentEscape {
		push()
	}
	return vars
}

// splitWords splits a variable that stands alone as a word, minding quotes.
func splitWords(s string) []string {
	var words []string
	var word strings.Builder
	in, escaped, started := rune(0), false, false
	for _, c := range s {
		blank := c == ' ' || c == '\t' || c == '\n' || c == '\r'
		switch {
		case escaped:
			escaped = false
			word.WriteRune(c)
		case c == '\\' && in != '\'':
			escaped, started = true, true
		case in != 0 && c == in:
			in = 0
		case in != 0:
			word.WriteRune(c)
		case c == '\'' || c == '"':
			in, started = c, true
		case blank:
			if started {
				words = append(words, word.String())
				word.Reset()
				started = false
			}
		default:
			started = true
			word.WriteRune(c)
		}
	}
	if started {
		words = append(words, word.String())
	}
	return words
}
