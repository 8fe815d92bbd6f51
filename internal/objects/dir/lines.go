package dir

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
)

// document is one YAML document of a file.
type document struct {
	text []byte
	// first is the line of the file where text begins, from 1.
	first int

	parsed bool
	node   *yamlv3.Node // parsed content; nil if there is none or it is not YAML
}

// content parses the document once, to find lines.
func (d *document) content() *yamlv3.Node {
	if !d.parsed {
		d.parsed = true
		var root yamlv3.Node
		if err := yamlv3.Unmarshal(d.text, &root); err == nil && len(root.Content) > 0 {
			d.node = root.Content[0]
		}
	}
	return d.node
}

// documents splits a file at its "---" lines. Such a line ends a document anywhere, even within a
// block scalar (YAML 1.2, 9.1.2), so the file can be split before it is parsed.
func documents(text []byte) []*document {
	docs := []*document{{first: 1}}
	line := 0
	for rest := text; len(rest) > 0; {
		line++
		end := bytes.IndexByte(rest, '\n') + 1
		if end == 0 {
			end = len(rest)
		}
		last := docs[len(docs)-1]
		if isSeparator(rest[:end]) {
			docs = append(docs, &document{first: line + 1})
		} else {
			// Documents are contiguous in text, so extending the slice copies nothing.
			if last.text == nil {
				last.text = rest[:0:len(rest)]
			}
			last.text = last.text[:len(last.text)+end]
		}
		rest = rest[end:]
	}
	return docs
}

func isSeparator(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	if !ok {
		return false
	}
	rest = bytes.TrimSpace(rest)
	return len(rest) == 0 || rest[0] == '#'
}

// line returns the line of the file for a path such as "spec.backendRefs[0].name": the line of the
// deepest existing part of it, otherwise that of the document's first content.
func (d *document) line(path string) int {
	node := d.content()
	if node == nil {
		return d.first
	}
	line := node.Line
	for _, step := range steps(path) {
		child, at := descend(node, step)
		if child == nil {
			break
		}
		node, line = child, at
	}
	return d.at(line)
}

// at converts a line of the document to a line of the file, both from 1. YAML breaks lines at more
// characters than editors do, so the result is limited to the document's last line.
func (d *document) at(line int) int {
	return d.first + min(line-1, bytes.Count(d.text, []byte("\n")))
}

var quoted = regexp.MustCompile(`"[^"]*"`)

// lineOfQuoted returns the line of the first scalar at or below path that reason quotes, otherwise
// the line of path.
func (d *document) lineOfQuoted(reason, path string) int {
	node := d.content()
	if node == nil {
		return d.first
	}
	for _, step := range steps(path) {
		if child, _ := descend(node, step); child != nil {
			node = child
		}
	}
	for _, q := range quoted.FindAllString(reason, -1) {
		if value, err := strconv.Unquote(q); err == nil {
			if scalar := find(node, value); scalar != nil {
				return d.at(scalar.Line)
			}
		}
	}
	return d.line(path)
}

// find returns the first scalar below node with this value, or nil. It does not follow aliases,
// since their targets are visited where they are defined.
func find(node *yamlv3.Node, value string) *yamlv3.Node {
	if node.Kind == yamlv3.ScalarNode && node.Value == value {
		return node
	}
	for _, child := range node.Content {
		if found := find(child, value); found != nil {
			return found
		}
	}
	return nil
}

// steps splits "a.b[0].c" into "a", "b", "0", "c". Text in brackets is one step: "data[tls.crt]" is
// "data", "tls.crt".
func steps(path string) []string {
	within := false
	return strings.FieldsFunc(path, func(r rune) bool {
		within = r == '[' || within && r != ']'
		return r == '[' || r == ']' || r == '.' && !within
	})
}

// descend returns the child of node that step names, and the line of its key.
func descend(node *yamlv3.Node, step string) (*yamlv3.Node, int) {
	if node.Kind == yamlv3.AliasNode {
		node = node.Alias
	}
	switch node.Kind {
	case yamlv3.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == step {
				return node.Content[i+1], node.Content[i].Line
			}
		}
	case yamlv3.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i], node.Content[i].Line
		}
	}
	return nil, 0
}

var yamlLine = regexp.MustCompile(`line (\d+): `)

// yamlError extracts the line from an error of the YAML parser, which counts from the document's
// first line.
func (d *document) yamlError(err error) (line int, reason string) {
	reason = strings.TrimPrefix(err.Error(), "yaml: ")
	reason = strings.TrimPrefix(reason, "unmarshal errors:\n  ")
	line = d.first
	if m := yamlLine.FindStringSubmatchIndex(reason); m != nil {
		if n, err := strconv.Atoi(reason[m[2]:m[3]]); err == nil {
			line = d.at(n)
		}
		reason = reason[:m[0]] + reason[m[1]:]
	}
	return line, "not valid YAML: " + reason
}
