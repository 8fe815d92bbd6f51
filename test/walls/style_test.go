package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// Maximum width of lines in Go files. A tab is four columns wide.
const (
	widestComment = 100
	widestCode    = 140
)

func TestStyle(t *testing.T) {
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && isOutside(os.DirFS(root), name):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go" || isIgnored(d.Name()):
			return nil
		}
		source, err := os.ReadFile(path.Join(root, name))
		if err != nil {
			return err
		}
		for _, b := range styleOf(name, source) {
			t.Error(b)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// directive matches a comment for tools, which must stay on one line.
var directive = regexp.MustCompile(`^//(\S|\s*\+[a-z])`)

// styleOf returns what is wrong with the lines and doc comments of a file. It permits lines that
// are too wide but cannot be broken: a directive, a word without spaces, or one long string.
func styleOf(name string, source []byte) (breaches []string) {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}
	}
	if ast.IsGenerated(parsed) {
		return nil
	}
	breach := func(line int, format string, args ...any) {
		breaches = append(breaches, fmt.Sprintf("%s:%d: ", name, line)+fmt.Sprintf(format, args...))
	}
	longest := longestStrings(source)
	for i, line := range strings.Split(string(source), "\n") {
		line = strings.ReplaceAll(line, "\t", "    ")
		width, text := utf8.RuneCountInString(line), strings.TrimSpace(line)
		switch {
		case width <= widestComment || longest[i+1] < 0: // a negative length: the line is in a raw string
		case strings.HasPrefix(text, "//"):
			if !directive.MatchString(text) && strings.Contains(strings.TrimPrefix(text, "// "), " ") {
				breach(i+1, "the comment has %d columns: break it before %d", width, widestComment)
			}
		case width-longest[i+1] > widestCode:
			breach(i+1, "the line has %d columns: break it before %d", width, widestCode)
		}
	}
	tests := strings.HasSuffix(name, "_test.go")
	for _, d := range parsed.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if !tests || !isTest(d.Name.Name) {
				checkDoc(set, breach, d.Doc, d.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				doc, names := d.Doc, []*ast.Ident(nil)
				grouped := d.Lparen.IsValid()
				switch s := s.(type) {
				case *ast.TypeSpec:
					names = []*ast.Ident{s.Name}
					if grouped {
						doc = s.Doc
					}
				case *ast.ValueSpec:
					names = s.Names
					if grouped {
						doc = s.Doc
					}
				}
				checkDoc(set, breach, doc, names...)
			}
		}
	}
	return breaches
}

// longestStrings returns, for each line, the width of the longest string on it; -1 for a line
// inside a raw string.
func longestStrings(source []byte) map[int]int {
	set := token.NewFileSet()
	file := set.AddFile("", -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, 0)
	longest := make(map[int]int)
	for {
		pos, tok, lit := s.Scan()
		switch tok {
		case token.EOF:
			return longest
		case token.STRING:
			first := file.Line(pos)
			if n := strings.Count(lit, "\n"); n > 0 {
				for i := range n + 1 {
					longest[first+i] = -1
				}
			} else if longest[first] >= 0 {
				longest[first] = max(longest[first], utf8.RuneCountInString(lit))
			}
		}
	}
}

// isTest reports whether the testing package runs a function of this name. The comment of such a
// function may be a sentence about what it tests.
func isTest(name string) bool {
	return slices.ContainsFunc([]string{"Test", "Benchmark", "Fuzz", "Example"}, func(p string) bool { return strings.HasPrefix(name, p) })
}

// checkDoc reports a doc comment that does not begin with one of the names that it documents.
func checkDoc(set *token.FileSet, breach func(int, string, ...any), doc *ast.CommentGroup, names ...*ast.Ident) {
	if doc == nil || len(names) == 0 {
		return
	}
	words := strings.Fields(doc.Text())
	for len(words) > 0 && slices.Contains([]string{"A", "An", "The"}, words[0]) {
		words = words[1:]
	}
	if len(words) == 0 || words[0] == "Deprecated:" {
		return
	}
	first := strings.TrimRight(words[0], ",:;.'")
	first = strings.TrimSuffix(first, "'s")
	if !slices.ContainsFunc(names, func(n *ast.Ident) bool { return n.Name == first }) {
		breach(set.Position(doc.Pos()).Line, "the comment begins with %q: begin with %s", words[0], names[0].Name)
	}
}

func TestStyleOf(t *testing.T) {
	wide := strings.Repeat("word ", 30)
	for source, want := range map[string]string{
		"// F is short.\nfunc F() {}":                                        "",
		"// It is F.\nfunc F() {}":                                           `begins with "It": begin with F`,
		"// F " + wide + "\nfunc F() {}":                                     "the comment has",
		"//go:generate " + wide + "\nfunc f() {}":                            "",
		"const x = \"" + wide + "\"":                                         "",
		"const x = len(\"a\") + len(`b`)" + strings.Repeat(" + len(``)", 20): "the line has",
		"const x = `\n" + wide + "\n" + wide + wide + "`":                    "",
		"const (\n\t// A B is x.\n\tB = 1\n\t// D\n\tC, D = 1, 2\n)":         "",
		"// v is one.\nvar w int":                                            `begins with "v": begin with w`,
	} {
		got := strings.Join(styleOf("x.go", []byte("package x\n\n"+source+"\n")), "\n")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("of\n%s\nit says %q, want %q", source, got, want)
		}
	}
}
