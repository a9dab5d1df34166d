package api

// #include <stdlib.h>
// #include "frame.h"
// static RedisModuleCommand *r_command_named(RedisModuleCtx *ctx, const char *name) { return redis.GetCommand(ctx, name); }
// static void spec_index(RedisKeySpec *s, int pos, int last, int step) {
//     s->begin_search_type = SEARCH_INDEX; s->bs.index.pos = pos;
//     s->find_keys_type = FIND_RANGE; s->fk.range.lastkey = last; s->fk.range.keystep = step;
// }
// static void spec_keyword(RedisKeySpec *s, const char *word, int from, int last, int step) {
//     s->begin_search_type = SEARCH_KEYWORD; s->bs.keyword.keyword = word; s->bs.keyword.startfrom = from;
//     s->find_keys_type = FIND_RANGE; s->fk.range.lastkey = last; s->fk.range.keystep = step;
// }
import "C"

import "unsafe"

// ArgKind is the type of a documented argument.
type ArgKind int

// The kinds of argument of COMMAND DOCS that are used here.
const (
	ArgString  ArgKind = C.ARG_STRING
	ArgInteger ArgKind = C.ARG_INTEGER
	ArgDouble  ArgKind = C.ARG_DOUBLE
	ArgKey     ArgKind = C.ARG_KEY
	ArgToken   ArgKind = C.ARG_TOKEN
	ArgOneOf   ArgKind = C.ARG_ONEOF
	ArgBlock   ArgKind = C.ARG_BLOCK
)

// Arg documents one argument of a command.
type Arg struct {
	Name     string
	Kind     ArgKind
	Token    string // the word before the value, or the word itself
	Optional bool
	Multiple bool
	Repeat   bool // with Multiple: the token is repeated too
	Key      int  // for ArgKey: which key spec
	Sub      []Arg
}

// Key flags: how a command uses a key (RedisModule_SetCommandInfo).
const (
	KeyRead   uint64 = 1<<0 | 1<<4        // RO, ACCESS
	KeyModify uint64 = 1<<1 | 1<<4 | 1<<5 // RW, ACCESS, UPDATE
	KeyInsert uint64 = 1<<1 | 1<<6        // RW, INSERT
)

// KeySpec says where a command's keys are: from Position on, or after Keyword; up to Last
// (relative to the first key; a negative number counts from the end); every Step-th
// argument.
type KeySpec struct {
	Flags    uint64
	Position int
	Keyword  string
	Last     int
	Step     int
}

// CommandInfo is what COMMAND DOCS and COMMAND INFO tell about a command.
type CommandInfo struct {
	Summary, Complexity, Since, Tips string
	Arity                            int
	Keys                             []KeySpec
	Args                             []Arg
}

// SetCommandInfo documents a command ("name" or "container|sub"). The server
// copies what it is given.
func SetCommandInfo(ctx Context, command string, info *CommandInfo) error {
	var keep []unsafe.Pointer
	defer func() {
		for _, p := range keep {
			C.free(p)
		}
	}()
	text := func(s string) *C.char {
		if s == "" {
			return nil
		}
		p := C.CString(s)
		keep = append(keep, unsafe.Pointer(p))
		return p
	}
	zeroed := func(n int, size uintptr) unsafe.Pointer {
		p := C.calloc(C.size_t(n), C.size_t(size))
		keep = append(keep, p)
		return p
	}
	// Both lists end with an all-zero element.
	var args func([]Arg) *C.RedisCommandArg
	args = func(list []Arg) *C.RedisCommandArg {
		if len(list) == 0 {
			return nil
		}
		first := (*C.RedisCommandArg)(zeroed(len(list)+1, unsafe.Sizeof(C.RedisCommandArg{})))
		out := unsafe.Slice(first, len(list))
		for i, a := range list {
			o := &out[i]
			o.name, o._type, o.token = text(a.Name), C.int(a.Kind), text(a.Token)
			o.key_spec_index = -1
			if a.Kind == ArgKey {
				o.key_spec_index = C.int(a.Key)
			}
			if a.Optional {
				o.flags |= C.ARG_OPTIONAL
			}
			if a.Multiple {
				o.flags |= C.ARG_MULTIPLE
			}
			if a.Repeat {
				o.flags |= C.ARG_MULTIPLE_TOKEN
			}
			o.subargs = args(a.Sub)
		}
		return first
	}
	var specs *C.RedisKeySpec
	if len(info.Keys) > 0 {
		specs = (*C.RedisKeySpec)(zeroed(len(info.Keys)+1, unsafe.Sizeof(C.RedisKeySpec{})))
		for i, k := range info.Keys {
			s := &unsafe.Slice(specs, len(info.Keys))[i]
			s.flags = C.uint64_t(k.Flags)
			if k.Keyword != "" {
				C.spec_keyword(s, text(k.Keyword), C.int(k.Position), C.int(k.Last), C.int(k.Step))
			} else {
				C.spec_index(s, C.int(k.Position), C.int(k.Last), C.int(k.Step))
			}
		}
	}
	cmd := C.r_command_named(ctxOf(ctx), text(command))
	if cmd == nil {
		return ErrRefused
	}
	return status(C.api_command_info(cmd, text(info.Summary), text(info.Complexity), text(info.Since), C.int(info.Arity), text(info.Tips), specs, args(info.Args)))
}
