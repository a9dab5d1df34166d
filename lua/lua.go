package lua

import _ "embed"

// Library is a library of functions, as FUNCTION LOAD takes it.
type Library struct {
	Name string
	Code string // begins with "#!lua name=" and the name
}

//go:embed jobmesh.lua
var jobmesh string

//go:embed unique_queue.lua
var uniqueQueue string

// Libraries are all there are; the first is the one that users need.
func Libraries() []Library {
	return []Library{{"jobmesh", jobmesh}, {"unique_queue", uniqueQueue}}
}
