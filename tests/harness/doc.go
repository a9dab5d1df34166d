// Package harness starts real redis-servers with the module loaded, and talks
// to them exactly: [Conn] tells a null array from a null string and a simple
// string from a bulk string, which client libraries hide.
//
// A server started [WithClock] has a wall clock that the test sets.
//
// Each server has a free port on 127.0.0.1 and a temporary folder, and is killed
// at the end of its test. It fails the test if it has died, if its log holds a
// crash report or a recovered panic, or if a sanitizer has reported an error.
package harness
