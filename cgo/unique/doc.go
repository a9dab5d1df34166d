// Package unique is the C side of a unique queue: its layout in Redis' memory
// (unique.h), and the data type's callbacks that must be C. Redis runs these in a
// forked child (rdb_save, aof_rewrite) or on its lazy-free thread (free). They
// walk memory and run no Go.
//
// The Go side of the same structures is package module/uniquequeue; its tests
// compare the two layouts.
package unique
