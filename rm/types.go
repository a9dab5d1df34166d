package rm

import (
	"errors"
	"fmt"
	"unsafe"

	"jobmesh/cgo/api"
)

// DataType is a native type: its name is what TYPE shows of a key.
type DataType struct {
	// Name has exactly 9 characters of A-Z a-z 0-9 - _ and is unique among modules.
	Name string
	// Version is the encoding version that is saved with each value, 0 to 1023.
	Version int
	// Methods are the C callbacks.
	Methods Methods
	// Load reads a value of the given encoding version. If it returns both an error and a
	// value, the value is given to Drop.
	Load func(r *Reader, version int) (unsafe.Pointer, error)
	// Drop frees a value that was loaded in part.
	Drop func(value unsafe.Pointer)
	// Unlink reports that a value has left its key. The key was deleted, overwritten or
	// expired; or it was renamed or moved, which an event reports right after.
	Unlink func(value unsafe.Pointer)
	// Copy makes another value of the same content. Without it COPY is refused.
	Copy func(value unsafe.Pointer) unsafe.Pointer
	// LoadAux reads what Methods.AuxSave saved: data that are in no key.
	LoadAux func(r *Reader, version int) error

	handle api.Type
	slot   int
}

// Methods are a type's C callbacks (cgo/api/redis.h), as function pointers.
type Methods = api.TypeMethods

func (t *DataType) register(ctx api.Context, slot int) error {
	if len(t.Name) != 9 {
		return errors.New("the name must have 9 characters")
	}
	if t.Load == nil || t.Drop == nil {
		return errors.New("Load and Drop are needed")
	}
	h, err := api.CreateType(ctx, slot, t.Name, t.Version, t.Methods, t.Unlink != nil, t.Copy != nil)
	t.handle, t.slot = h, slot
	return err
}

// ErrWrongType is the error for a key that holds something else.
var ErrWrongType = errors.New("WRONGTYPE Operation against a key holding the wrong kind of value")

// Value returns the value of this type that a key holds, nil if there is no such key, or
// [ErrWrongType].
func (t *DataType) Value(c *Ctx, key String) (unsafe.Pointer, error) {
	value, held := api.KeyGet(c.f.Context(), key.p, t.handle)
	if held == api.KeyOther {
		return nil, ErrWrongType
	}
	return value, nil
}

// Set puts a value into a key.
func (t *DataType) Set(c *Ctx, key String, value unsafe.Pointer) error {
	return api.KeySet(c.f.Context(), key.p, t.handle, value)
}

// Lives says whether there is a key, whatever it holds, and whether it has a time to live.
// If that time is over, the call may remove the key.
func (c *Ctx) Lives(key String) (lives, expires bool) { return api.KeyLives(c.f.Context(), key.p) }

// Key returns the key that was looked up for this call: the key of [Command.Key], or the
// key because of which [Command.Ready] was called.
func (c *Ctx) Key() String { return String{c.f.Key()} }

// Held returns the value that [Ctx.Key] holds, nil if there is no such key, or
// [ErrWrongType].
func (c *Ctx) Held() (unsafe.Pointer, error) {
	value, held := c.f.Held()
	if held == api.KeyOther {
		return nil, ErrWrongType
	}
	return value, nil
}

// Put sets a key's value when the call returns. Unlike [DataType.Set] it needs no crossing.
func (t *DataType) Put(c *Ctx, key String, value unsafe.Pointer) { c.f.Put(key.p, t.slot, value) }

// Remove removes a key when the call returns. Unlike Delete it needs no crossing.
func (c *Ctx) Remove(key String) { c.f.Remove(key.p) }

// Delete removes a key, whatever it holds.
func (c *Ctx) Delete(key String) error { return api.KeyDelete(c.f.Context(), key.p) }

// Reader reads a value from an RDB.
type Reader struct {
	io  api.IO
	err error
}

// ErrTruncated says that an RDB ended early.
var ErrTruncated = errors.New("the data ends early")

// Uint reads a number.
func (r *Reader) Uint() uint64 {
	if r.Err() != nil {
		return 0
	}
	return api.LoadUnsigned(r.io)
}

// Bytes reads a string and passes it to use. The string is freed when use returns.
func (r *Reader) Bytes(use func([]byte) error) error {
	if r.Err() != nil {
		return r.err
	}
	b := api.LoadBytes(r.io)
	if b == nil {
		return r.Err()
	}
	defer api.FreeRaw(unsafe.Pointer(unsafe.SliceData(b)))
	return use(b)
}

// Err returns ErrTruncated once reading has failed.
func (r *Reader) Err() error {
	if r.err == nil && api.IOError(r.io) {
		r.err = ErrTruncated
	}
	return r.err
}

// FlatType is a data type whose values are runs of bytes. It needs no C.
type FlatType struct {
	DataType
	restore api.CString
}

// NewFlatType makes a FlatType. restore names a command of the module that sets such a
// value ("name key bytes"). A rewritten AOF uses that command.
func NewFlatType(name string, version int, restore string) *FlatType {
	t := &FlatType{restore: api.NewCString(restore)}
	t.Name, t.Version, t.Methods = name, version, api.FlatMethods()
	t.Load = func(r *Reader, v int) (value unsafe.Pointer, err error) {
		if v > version {
			return nil, fmt.Errorf("encoding version %d is newer than this module's %d", v, version)
		}
		err = r.Bytes(func(b []byte) error {
			value = t.New(len(b))
			copy(t.Bytes(value), b)
			return nil
		})
		return value, err
	}
	t.Drop = func(value unsafe.Pointer) { api.FreeRaw(value) }
	t.Copy = func(value unsafe.Pointer) unsafe.Pointer {
		from := t.Bytes(value)
		to := t.New(len(from))
		copy(t.Bytes(to), from)
		return to
	}
	return t
}

// New makes a value of n zero bytes.
func (t *FlatType) New(n int) unsafe.Pointer { return api.NewFlat(t.restore, n) }

// Bytes views a value's bytes. The caller may change them in place.
func (t *FlatType) Bytes(value unsafe.Pointer) []byte { return api.FlatBytes(value) }
