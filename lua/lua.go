package lua

import (
	"embed"
	"strings"
)

// Library is a library of functions, as FUNCTION LOAD takes it.
type Library struct {
	Name string
	Code string // begins with "#!lua name=" and the name
}

//go:embed jobmesh/*.lua unique_queue.lua
var files embed.FS

// Libraries are all there are; the first is the one that users need.
func Libraries() []Library {
	return []Library{
		{Name: "jobmesh", Code: text(
			"jobmesh/library", "jobmesh/move", "jobmesh/import", "jobmesh/export", "jobmesh/resque", "jobmesh/sidekiq",
			"jobmesh/rq", "jobmesh/rq_import", "jobmesh/rq_export",
		)},
		{Name: "unique_queue", Code: text("unique_queue")},
	}
}

// text joins a library's files in their order: each uses what those before it define.
func text(names ...string) string {
	parts := make([]string, len(names))
	for i, name := range names {
		code, err := files.ReadFile(name + ".lua")
		if err != nil {
			panic(err) // a name above is wrong
		}
		parts[i] = string(code)
	}
	return strings.Join(parts, "\n")
}
