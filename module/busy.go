//go:build jobmesh_busy

package main

import (
	"math/rand/v2"
	"runtime"
)

// Built for a test only: goroutines that allocate without end, and collections,
// so that there is never a quiet moment in which to fork.
func init() {
	for range 3 {
		go func() {
			var keep [64][]byte
			for i := 0; ; i++ {
				keep[i%len(keep)] = make([]byte, rand.IntN(1<<14))
				if i%1000 == 0 {
					runtime.GC()
				}
			}
		}()
	}
}
