//go:build amd64 || arm64

package table

import "unsafe"

// Prefetch begins to load cache lines that will be needed soon, at least one, and doesn't wait. A load would hold the
// processor up, even if nobody uses its result.
//
//go:noescape
func Prefetch(p unsafe.Pointer, lines int)
