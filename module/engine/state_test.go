package engine_test

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// State, QTime, Flags and Place of a job are written by state.go, and by package store, alone.
func TestOneFileWritesAJobsState(t *testing.T) {
	fset := token.NewFileSet()
	paths, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") || path == "state_check.go" {
			continue
		}
		f, err := parser.ParseFile(fset, path, nil, 0)
		require.NoError(t, err)
		files = append(files, f)
	}
	info := &types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}}
	config := types.Config{Importer: importer.ForCompiler(fset, "source", nil)}
	_, err = config.Check("jobmesh/module/engine", fset, files, info)
	require.NoError(t, err)
	writes := map[string]int{}
	written := func(at ast.Expr) {
		s, yes := at.(*ast.SelectorExpr)
		if !yes || info.Selections[s] == nil {
			return
		}
		of := info.Selections[s].Recv().String()
		switch s.Sel.Name {
		case "State", "QTime", "Flags", "Place":
			if strings.HasSuffix(of, "/store.Job") {
				writes[filepath.Base(fset.Position(s.Pos()).Filename)]++
			}
		}
	}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for _, at := range n.Lhs {
					written(at)
				}
			case *ast.IncDecStmt:
				written(n.X)
			case *ast.UnaryExpr:
				if n.Op == token.AND {
					written(n.X)
				}
			}
			return true
		})
	}
	assert.Greater(t, writes["state.go"], 20)
	delete(writes, "state.go")
	assert.Empty(t, writes)
}
