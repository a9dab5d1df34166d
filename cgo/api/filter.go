package api

// #include <string.h>
// #include "filter.h"
// static void *r_calloc(size_t n, size_t size) { return redis.Calloc(n, size); }
// static char *r_text(const char *p, size_t n) { return n ? memcpy(redis.Alloc(n), p, n) : redis.Alloc(1); }
// static void rule_from(struct rule *r, const char *p, size_t n) { r->from[r->nfrom++] = (struct slice){ r_text(p, n), n }; }
// static void rule_to(struct rule *r, const char *p, size_t n) { r->to[r->nto++] = (struct slice){ r_text(p, n), n }; }
import "C"

import (
	"fmt"
	"unsafe"
)

// Rule rewrites commands that begin with the words From and have at most More arguments
// after them (-1: any number): To replaces From.
type Rule struct {
	From, To []string
	More     int
}

// SetFilter replaces the rules in force. The first rule that matches counts. Without rules
// it removes the filter.
func SetFilter(ctx Context, rules []Rule) error {
	for _, r := range rules {
		if len(r.From) == 0 || r.From[0] == "" || len(r.To) == 0 || len(r.From) > C.FILTER_WORDS || len(r.To) > C.FILTER_WORDS {
			return fmt.Errorf("a rule has 1 to %d words on either side, not %q and %q", int(C.FILTER_WORDS), r.From, r.To)
		}
	}
	var list *C.struct_rule
	if len(rules) > 0 {
		list = (*C.struct_rule)(C.r_calloc(C.size_t(len(rules)), C.size_t(unsafe.Sizeof(C.struct_rule{}))))
	}
	for i, r := range rules {
		out := &unsafe.Slice(list, len(rules))[i]
		out.more = C.int(r.More)
		for _, w := range r.From {
			C.rule_from(out, (*C.char)(unsafe.Pointer(unsafe.StringData(w))), C.size_t(len(w)))
		}
		for _, w := range r.To {
			C.rule_to(out, (*C.char)(unsafe.Pointer(unsafe.StringData(w))), C.size_t(len(w)))
		}
	}
	return status(C.filter_set(ctxOf(ctx), list, C.int(len(rules))))
}
