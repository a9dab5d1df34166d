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

// checkedEngine returns the package, with the types of its expressions.
func checkedEngine(t *testing.T) (*token.FileSet, []*ast.File, *types.Info, *types.Package) {
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
	pkg, err := config.Check("jobmesh/module/engine", fset, files, info)
	require.NoError(t, err)
	return fset, files, info, pkg
}

// A job moves when its holders or extras change, so its address is good only within a call. Only these places
// keep an address: for the caller until its next call (reclaim.go), within a call, or while no job moves.
func TestNoAddressOfAJobIsKept(t *testing.T) {
	_, _, _, pkg := checkedEngine(t)
	var kept []string
	var look func(name string, of types.Type)
	look = func(name string, of types.Type) {
		s, yes := of.Underlying().(*types.Struct)
		if !yes {
			return
		}
		for f := range s.Fields() {
			switch _, inner := f.Type().(*types.Struct); {
			case inner:
				look(name+"."+f.Name(), f.Type())
			case strings.Contains(f.Type().String(), "*jobmesh/module/store.Job"):
				kept = append(kept, name+"."+f.Name())
			}
		}
	}
	for _, name := range pkg.Scope().Names() {
		switch name {
		case "host", "lockHost", "owners": // these are the Node under other names
			continue
		}
		if at, yes := pkg.Scope().Lookup(name).(*types.TypeName); yes {
			look(name, at.Type())
		}
	}
	assert.ElementsMatch(t, []string{
		"Effect.Job",
		"end.job",           // within a call
		"settling.asked",    // emptied before a pause
		"Node.scratch.jobs", // within a call
		"Node.scratch.run",  // likewise
	}, kept)
}

// Only state.go and package store write a job's State, QTime, Flags and Place.
func TestOneFileWritesAJobsState(t *testing.T) {
	fset, files, info, _ := checkedEngine(t)
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
