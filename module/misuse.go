//go:build jobmesh_misuse

package main

// static int shift(int n) { volatile int one = 1; return one << n; }
import "C"

import (
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"jobmesh/cgo/record"
	"jobmesh/rm"
)

// Built for a test only, of what the sanitizers see: a signal each for memory
// that C uses after it was freed, that Go reads behind its end, and for what
// isn't defined in C.
func init() {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP)
	go func() {
		var m rm.Memory
		switch <-asked {
		case syscall.SIGUSR1:
			box := m.Alloc(1000)
			*(*unsafe.Pointer)(box) = nil
			record.FreeValue(box)
			record.FreeValue(box)
		case syscall.SIGUSR2:
			sink = int(*(*byte)(unsafe.Add(m.Alloc(1000), 1000)))
		case syscall.SIGHUP:
			sink = int(C.shift(64))
		}
	}()
}

var sink int
