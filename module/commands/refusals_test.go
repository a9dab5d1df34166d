package commands

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// refusalForm is the form of an error: a word in capitals, by which a program recognizes it, and a
// text that says what is wrong, in three words at least, without a full stop at its end.
var refusalForm = regexp.MustCompile(`^[A-Z]{2,}( \S+){2,} \S*[^.\s]$`)

// These texts are Disque's and Redis's. Clients compare them, so they stay as they are.
var givenRefusals = []string{
	"ACKED The job is acknowledged already, there is nothing left to work on.",
	"BADID Invalid Job ID format.",
	"ERR I tried hard but I can't forget myself...",
	"ERR With RETRY set to 0 please explicitly set  REPLICATE to 1 (at-most-once delivery)",
	"ERR syntax error",
	"ERR invalid cursor",
	"NOJOB Job not known in the context of this node.",
	"OOM command not allowed when used memory > 'maxmemory'.",
	"READONLY You can't write against a read only replica.",
	"TOOLATE Half of job TTL already elapsed, you are no longer allowed to postpone the next delivery.",
}

// refusals returns the texts of all errors in a folder's source: constants of type Refusal, and the
// arguments of Error and Refusal. If a text goes on with a value, some words stand for the value.
func refusals(t *testing.T, dir string) (texts map[string]token.Position) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	set, texts := token.NewFileSet(), map[string]token.Position{}
	note := func(e ast.Expr) {
		begin, whole := e, true
		for {
			if call, ok := begin.(*ast.CallExpr); ok && len(call.Args) > 0 { // Sprintf
				begin = call.Args[0]
			} else if sum, ok := begin.(*ast.BinaryExpr); ok {
				begin, whole = sum.X, false
			} else {
				break
			}
		}
		lit, ok := begin.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return
		}
		text, err := strconv.Unquote(lit.Value)
		require.NoError(t, err)
		if !whole {
			text += "so and so that follows" // an error of the server's, or a name
		}
		texts[text] = set.Position(lit.Pos())
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if calledAs(n.Type) == "Refusal" && len(n.Values) == 1 {
					note(n.Values[0])
				}
			case *ast.CallExpr:
				if f := calledAs(n.Fun); (f == "Refusal" || f == "Error") && len(n.Args) == 1 {
					note(n.Args[0])
				}
			}
			return true
		})
	}
	return texts
}

func calledAs(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func TestRefusalsHaveOneForm(t *testing.T) {
	all := map[string]token.Position{}
	for dir, least := range map[string]int{".": 25, "../engine": 25, "../lock": 4} {
		found := refusals(t, dir)
		assert.GreaterOrEqual(t, len(found), least, dir)
		for text, at := range found {
			all[text] = at
		}
	}
	for _, given := range givenRefusals {
		assert.Contains(t, all, given, "nobody says this any more")
		assert.NotRegexp(t, refusalForm, given, "it needs no exception")
		delete(all, given)
	}
	for text, at := range all {
		assert.Regexp(t, refusalForm, text, "%v", at)
	}
}
