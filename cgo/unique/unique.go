package unique

// #cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror
// #include "unique.h"
import "C"

import "unsafe"

// Methods are the callbacks, as C function pointers.
type Methods struct {
	Save, Rewrite, MemUsage, Digest, Free, FreeEffort unsafe.Pointer
}

// Init finds the API functions that the callbacks use, and returns the callbacks. Call it
// before any of them can run.
func Init(symbol func(name string) unsafe.Pointer) Methods {
	for i := C.int(0); C.uq_needs(i) != nil; i++ {
		C.uq_bind(i, symbol(C.GoString(C.uq_needs(i))))
	}
	return Methods{
		Save:       C.uq_save,
		Rewrite:    C.uq_rewrite,
		MemUsage:   C.uq_usage,
		Digest:     C.uq_digest,
		Free:       C.uq_free,
		FreeEffort: C.uq_effort,
	}
}

// FreeValue frees a queue and its items.
func FreeValue(queue unsafe.Pointer) { C.uq_free(queue) }

// Field is one field of a C structure.
type Field struct {
	Name         string // structure.field, or the structure alone for its size
	Offset, Size uintptr
}

// Layout lists the C structures' fields.
func Layout() []Field {
	var out []Field
	for p := C.uq_layout(); p.name != nil; p = (*C.struct_uq_field)(unsafe.Add(unsafe.Pointer(p), unsafe.Sizeof(*p))) {
		out = append(out, Field{C.GoString(p.name), uintptr(p.offset), uintptr(p.size)})
	}
	return out
}
