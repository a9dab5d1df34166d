// Package record is the C side of a stored job and queue: the layout of both
// in Redis' memory (record.h), and the data type's callbacks that must be C.
// Redis runs these in a forked child (rdb_save, aof_rewrite) or on its lazy-free
// thread (free). They walk memory and run no Go. aux_save writes to an RDB what
// is in no key: locks and settings. For an AOF of commands the server has no such
// callback, so package api makes the forked child create a key, whose aof_rewrite
// writes them.
//
// The Go side of the same structures is package module/store; its tests compare
// the two layouts. The part of a job that is saved is called the record. It is one
// run of bytes inside the structure, and is saved as it lies in memory.
// store.JobFromRecord checks and reads it.
package record
