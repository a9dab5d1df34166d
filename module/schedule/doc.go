// Package schedule computes the slots of recurring jobs: the moments, in unix seconds, at which they are due.
//
// All nodes of a mesh must compute the same slots, so a schedule depends on nothing but its text, and on the time zones that are built into
// the module (zones.go): not on the machine's zones, nor on when it was set.
//
// A line of cron has its fields parsed by github.com/robfig/cron. The slots are computed here over the parsed fields, because that library
// has other rules for a clock change: there a local time that is skipped has no slot, one that comes twice may have two, and a day that
// comes up less often than every five years is never found.
package schedule
