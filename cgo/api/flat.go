package api

// #include "flat.h"
import "C"

import "unsafe"

// FlatMethods are the C callbacks of a type whose values come from [NewFlat].
func FlatMethods() TypeMethods {
	m := &C.flat_methods
	return TypeMethods{
		Save:     unsafe.Pointer(m.save),
		Rewrite:  unsafe.Pointer(m.rewrite),
		MemUsage: unsafe.Pointer(m.usage),
		Digest:   unsafe.Pointer(m.digest),
		Free:     unsafe.Pointer(m.free),
	}
}

// NewFlat makes a value of n zero bytes. restore names the command that sets
// such a value from an AOF.
func NewFlat(restore CString, n int) unsafe.Pointer {
	return unsafe.Pointer(C.flat_new((*C.char)(restore), C.size_t(n)))
}

// FlatBytes views a value's bytes; valid as long as the value.
func FlatBytes(value unsafe.Pointer) []byte {
	v := (*C.struct_flat)(value)
	return unsafe.Slice((*byte)(unsafe.Add(value, unsafe.Sizeof(*v))), int(v.n))
}
