package record

// #cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror
// #include "record.h"
import "C"

import "unsafe"

// Methods are the callbacks, as C function pointers.
type Methods struct {
	Save, Rewrite, MemUsage, Digest, Free, FreeEffort unsafe.Pointer
	// AuxSave and AuxSaveSome save what is in no key.
	AuxSave, AuxSaveSome unsafe.Pointer
	// AuxRewrite writes all that is in no key to an AOF that begins without an RDB.
	AuxRewrite unsafe.Pointer
}

// Init finds the API functions that the callbacks use, and returns the callbacks. Call it
// before any of them can run.
func Init(symbol func(name string) unsafe.Pointer) Methods {
	for i := C.int(0); C.jm_needs(i) != nil; i++ {
		C.jm_bind(i, symbol(C.GoString(C.jm_needs(i))))
	}
	return Methods{
		Save:       C.jm_save,
		Rewrite:    C.jm_rewrite,
		MemUsage:   C.jm_usage,
		Digest:     C.jm_digest,
		Free:       C.jm_free,
		FreeEffort: C.jm_effort,

		AuxSave:     C.jm_save_locks,
		AuxSaveSome: C.jm_save_some_locks,
	}
}

// NoteMethods returns the callbacks of a type that saves what [SetNote] was given, and has
// no keys. The type also writes the locks, if the AOF is rewritten without an RDB.
func NoteMethods() Methods {
	return Methods{AuxSave: C.jm_save_note, AuxSaveSome: C.jm_save_some_note, AuxRewrite: C.jm_rewrite_keyless}
}

// NoteFormat is the format of what [SetNote] is given, and the first byte of what is saved.
const NoteFormat = C.JM_NOTE_FORMAT

// NotePages is how many pages [SetNote] takes. The build fails where that isn't entries.Pages (package commands).
const NotePages = C.JM_NOTE_PAGES

// SetNote copies a page of bytes that are saved beside the keys, and replaces the earlier ones. page is 0 to NotePages-1.
func SetNote(page int, b []byte) {
	C.jm_note(C.int(page), (*C.char)(unsafe.Pointer(unsafe.SliceData(b))), C.size_t(len(b)))
}

// DropNote forgets all pages.
func DropNote() {
	for page := range NotePages {
		SetNote(page, nil)
	}
}

// FreeValue frees a keyspace value and what it owns.
func FreeValue(box unsafe.Pointer) { C.jm_free(box) }

// Epoch is what each saved queue says about the moment when it was saved (struct jm_epoch).
type Epoch struct {
	// Process identifies the run of the server: a random number.
	Process uint64
	// Changes counts what that run did to jobs and locks. The saved state of an
	// at-most-once job is right only if no change followed the saving: each change may
	// have given the job to a client, or to another node.
	Changes uint64
	// Final is 1 if JOBMESH SHUTDOWN of an older release saved the data.
	Final uint64
}

// Now returns the epoch that will be saved. The caller keeps it up to date.
func Now() *Epoch { return (*Epoch)(unsafe.Pointer(C.jm_epoch())) }

// SetLocks tells C where the list of all locks is (struct jm_lock_list).
func SetLocks(list unsafe.Pointer) { C.jm_locks((*C.struct_jm_lock_list)(list)) }

// Flags of a lock of which C has to know (struct jm_lock).
const (
	LockOutlives = C.JM_LOCK_OUTLIVES
	LockForeign  = C.JM_LOCK_FOREIGN
)

// SetFlushes tells C where the number of flushes is. A queue that was known before the last
// flush is saved as an empty one.
func SetFlushes(n unsafe.Pointer) { C.jm_flushes((*C.uint32_t)(n)) }

// Field is one field of a C structure.
type Field struct {
	Name         string // structure.field, or the structure alone for its size
	Offset, Size uintptr
}

// Layout lists the C structures' fields.
func Layout() []Field {
	var out []Field
	for p := C.jm_layout(); p.name != nil; p = (*C.struct_jm_field)(unsafe.Add(unsafe.Pointer(p), unsafe.Sizeof(*p))) {
		out = append(out, Field{C.GoString(p.name), uintptr(p.offset), uintptr(p.size)})
	}
	return out
}
