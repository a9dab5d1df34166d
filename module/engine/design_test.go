package engine_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../.." // of the repository

// TestDesignNamesAll checks that DESIGN.md names each state, place, reason and flag of a job, and each kind
// of message.
func TestDesignNamesAll(t *testing.T) {
	design := readDesign(t)
	for file, wanted := range map[string]*regexp.Regexp{
		"module/store/layout.go": regexp.MustCompile(`^(State|Flag|In)[A-Z]|^(NoReason|Delayed|Deferred|Blocked)$|^queue(Loose|Attached|Unlinked)$`),
		"module/wire/wire.go":    regexp.MustCompile(`.`),
	} {
		names := constants(t, filepath.Join(root, file), strings.HasSuffix(file, "wire.go"))
		require.Greater(t, len(names), 10, file)
		for _, name := range names {
			if wanted.MatchString(name) {
				assert.True(t, strings.Contains(design, "`"+name+"`"), name)
			}
		}
	}
}

// TestDesignNamesTransitions checks that DESIGN.md lists each transition of state.go.
func TestDesignNamesTransitions(t *testing.T) {
	design := readDesign(t)
	text, err := os.ReadFile("state.go")
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^func (become\w+)\(`).FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(found), 10)
	for _, f := range found {
		assert.Contains(t, design, "`"+f[1]+"()`")
	}
}

// TestDesignNamesNothingElse checks that the files, functions and other names of DESIGN.md are in the code.
func TestDesignNamesNothingElse(t *testing.T) {
	functions, words := names(t)
	for _, quoted := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(readDesign(t), -1) {
		name := quoted[1]
		switch call, isCall := strings.CutSuffix(name, "()"); {
		case regexp.MustCompile(`^[\w/]+/?\.(go|c|h)$|^[\w/]+/$|^(engine|cgo|tests|lua)/\w+$`).MatchString(name):
			_, err := os.Stat(filepath.Join(root, "module", name))
			if err != nil {
				_, err = os.Stat(filepath.Join(root, name))
			}
			assert.NoError(t, err, name)
		case isCall:
			assert.True(t, functions[call[strings.LastIndex(call, ".")+1:]], name)
		case regexp.MustCompile(`^[A-Za-z]\w*[a-z]\w*$`).MatchString(name):
			assert.True(t, words[name], name)
		}
	}
}

func readDesign(t *testing.T) string {
	text, err := os.ReadFile(filepath.Join(root, "module/DESIGN.md"))
	require.NoError(t, err)
	return string(text)
}

// constants lists the constants of a file: all of them, or only those of the type Kind.
func constants(t *testing.T, path string, kinds bool) (names []string) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	require.NoError(t, err)
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		typed, _ := g.Specs[0].(*ast.ValueSpec).Type.(*ast.Ident)
		if kinds && (typed == nil || typed.Name != "Kind") {
			continue
		}
		for _, spec := range g.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				if !kinds || ast.IsExported(name.Name) { // the last kind only counts the others
					names = append(names, name.Name)
				}
			}
		}
	}
	return names
}

// names returns the names of functions in all code but tests, and all words of identifiers and strings.
func names(t *testing.T) (functions, words map[string]bool) {
	functions, words = map[string]bool{}, map[string]bool{}
	cFunction, word := regexp.MustCompile(`(?m)^[a-z].*?\b(\w+)\(`), regexp.MustCompile(`\w+`)
	for _, dir := range []string{"module", "rm", "cgo"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			switch {
			case err != nil || strings.HasSuffix(path, "_test.go"):
			case filepath.Ext(path) == ".c":
				text, err := os.ReadFile(path)
				for _, found := range cFunction.FindAllStringSubmatch(string(text), -1) {
					functions[found[1]] = true
				}
				return err
			case filepath.Ext(path) == ".go":
				file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
				ast.Inspect(file, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.FuncDecl:
						functions[n.Name.Name] = true
					case *ast.Ident:
						words[n.Name] = true
					case *ast.BasicLit:
						for _, w := range word.FindAllString(n.Value, -1) {
							words[w] = true
						}
					}
					return true
				})
				return err
			}
			return err
		}))
	}
	return functions, words
}
