//go:build amd64 || arm64

package table

import "unsafe"

// Prefetch begins to load cache lines, one at least, that will be needed soon, and waits
// for nothing: a load, even one whose result isn't used, holds the processor up.
//
//go:noescape
func Prefetch(p unsafe.Pointer, lines int)
