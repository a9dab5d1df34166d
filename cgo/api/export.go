package api

// #include "frame.h"
import "C"

import (
	"fmt"
	"runtime/debug"
	"unsafe"
)

// Handler is the Go side of the module: package rm.
type Handler interface {
	// Load runs once, when the server loads the module.
	Load(f *Frame) error
	// Command runs the command in a slot.
	Command(slot int, f *Frame)
	// Event reports a server event; a and b are its numbers (the flushed
	// database or -1, the two swapped databases).
	Event(f *Frame, event, sub int, a, b int64)
	// KeyEvent reports that a key was loaded, restored, renamed or moved to this name, or that
	// a key with a value of this module's types was given a time to live.
	KeyEvent(f *Frame, event string, key String)
	// Timer reports that a timer fired. It returns true to be called again at once, with
	// another frame.
	Timer(f *Frame, id uintptr) (more bool)
	// Posted runs the functions that other goroutines left for the main thread.
	Posted()
	// Turn runs when a turn of the event loop is over, if [WantTurn] asked for it.
	Turn()
	// Unblocked reports that a blocked client was unblocked by CLIENT UNBLOCK, or has gone. It returns f, with the client's answer, if the
	// client was still waiting, and else the answer that is on its way.
	Unblocked(f *Frame, b Blocked, gone bool) (answer *Frame)
	// Ready serves a client that [Frame.BlockOnKeys] suspended in the command in a slot: a key
	// now holds something. If it returns false, the client goes on waiting.
	Ready(slot int, f *Frame) bool
	// Answered reports that the client got its answer, or that it went before that.
	Answered(answer *Frame, heard bool)
	// TypeLoad reads a value of the type in a slot. It returns nil to refuse the value.
	TypeLoad(slot int, io IO, encver int) unsafe.Pointer
	// TypeUnlink reports that a value has left its key.
	TypeUnlink(slot int, value unsafe.Pointer)
	// TypeCopy copies a value, for COPY. It returns nil to refuse that.
	TypeCopy(slot int, value unsafe.Pointer) unsafe.Pointer
	// TypeAux reads what a type saved beside the keys. It returns false to refuse that.
	TypeAux(slot int, io IO, encver int) bool
	// Info fills INFO.
	Info(info unsafe.Pointer)
	// ConfigGet, ConfigGetString and ConfigSet serve the parameter in a slot.
	ConfigGet(slot int) int64
	ConfigGetString(slot int) String
	ConfigSet(slot int, text []byte, num int64) error
	// Panicked reports a recovered panic.
	Panicked(value any, stack []byte)
}

// handler is set once, before the server can call. The C entry points have no other way to
// find the module.
var handler Handler

// SetHandler makes h the module's Go side. Call it from an init function.
func SetHandler(h Handler) { handler = h }

// recovered ends every call from C into Go. It reports and answers a panic, which never
// reaches the server.
func recovered(f *Frame) {
	if r := recover(); r != nil {
		stack := debug.Stack()
		if f != nil {
			f.Reset()
			f.Error(fmt.Sprintf("ERR internal error: %.200v (the server's log has the details)", r))
		}
		handler.Panicked(r, stack)
	}
}

//export goLoad
func goLoad(f *C.struct_frame) (code C.int) {
	code = C.REDIS_ERR
	defer recovered((*Frame)(f))
	if handler.Load((*Frame)(f)) == nil {
		code = C.REDIS_OK
	}
	return code
}

//export goCommand
func goCommand(slot C.int, f *C.struct_frame) {
	defer recovered((*Frame)(f))
	handler.Command(int(slot), (*Frame)(f))
}

//export goEvent
func goEvent(f *C.struct_frame, event, sub C.int, a, b C.int64_t) {
	defer recovered(nil)
	handler.Event((*Frame)(f), int(event), int(sub), int64(a), int64(b))
}

//export goKeyEvent
func goKeyEvent(f *C.struct_frame, event *C.char, key *C.RedisModuleString) {
	defer recovered(nil)
	handler.KeyEvent((*Frame)(f), C.GoString(event), String(key))
}

//export goTimer
func goTimer(f *C.struct_frame, id C.uintptr_t) (more C.int) {
	defer recovered(nil)
	if handler.Timer((*Frame)(f), uintptr(id)) {
		more = 1
	}
	return more
}

//export goPosted
func goPosted() {
	defer recovered(nil)
	handler.Posted()
}

//export goTurn
func goTurn() {
	defer recovered(nil)
	handler.Turn()
}

//export goUnblocked
func goUnblocked(f *C.struct_frame, b *C.RedisModuleBlockedClient, gone C.int) (answer *C.struct_frame) {
	answer = f // a panic's error is an answer too
	defer recovered((*Frame)(f))
	return handler.Unblocked((*Frame)(f), Blocked(b), gone != 0).c()
}

//export goReady
func goReady(slot C.int, f *C.struct_frame) (served C.int) {
	served = 1 // a panic's error is an answer too
	defer recovered((*Frame)(f))
	if !handler.Ready(int(slot), (*Frame)(f)) {
		served = 0
	}
	return served
}

//export goAnswered
func goAnswered(answer *C.struct_frame, heard C.int32_t) {
	defer recovered(nil)
	handler.Answered((*Frame)(answer), heard != 0)
}

//export goTypeLoad
func goTypeLoad(slot C.int, io *C.RedisModuleIO, encver C.int) (value unsafe.Pointer) {
	defer recovered(nil)
	return handler.TypeLoad(int(slot), IO(io), int(encver))
}

//export goTypeUnlink
func goTypeUnlink(slot C.int, value unsafe.Pointer) {
	defer recovered(nil)
	handler.TypeUnlink(int(slot), value)
}

//export goTypeCopy
func goTypeCopy(slot C.int, value unsafe.Pointer) (copied unsafe.Pointer) {
	defer recovered(nil)
	return handler.TypeCopy(int(slot), value)
}

//export goTypeAux
func goTypeAux(slot C.int, io *C.RedisModuleIO, encver C.int) (code C.int) {
	code = C.REDIS_ERR
	defer recovered(nil)
	if handler.TypeAux(int(slot), IO(io), int(encver)) {
		code = C.REDIS_OK
	}
	return code
}

//export goInfo
func goInfo(info *C.RedisModuleInfoCtx) {
	defer recovered(nil)
	handler.Info(unsafe.Pointer(info))
}

//export goConfigGet
func goConfigGet(slot C.int) C.longlong {
	defer recovered(nil)
	return C.longlong(handler.ConfigGet(int(slot)))
}

//export goConfigGetString
func goConfigGetString(slot C.int) *C.RedisModuleString {
	defer recovered(nil)
	return (*C.RedisModuleString)(handler.ConfigGetString(int(slot)))
}

//export goConfigSet
func goConfigSet(slot C.int, text *C.char, n C.size_t, num C.longlong, refusal **C.RedisModuleString) (code C.int) {
	code = C.REDIS_ERR
	defer recovered(nil)
	err := handler.ConfigSet(int(slot), unsafe.Slice((*byte)(unsafe.Pointer(text)), int(n)), int64(num))
	if err != nil {
		*refusal = (*C.RedisModuleString)(NewString([]byte(err.Error())))
		return C.REDIS_ERR
	}
	return C.REDIS_OK
}
