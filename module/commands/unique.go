package commands

import (
	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// Errors of ADDJOB's options of uniqueness.
const (
	errStrategy   engine.Refusal = "ERR UNIQUE must be before-processing, during-processing, before-and-during-processing, until-processed, window TTL seconds, or none"
	errWindow     engine.Refusal = "ERR UNIQUE window must be followed by TTL and the window's seconds, 1 to 2147483647"
	errKey        engine.Refusal = "ERR KEY must have 4096 bytes at most"
	errScope      engine.Refusal = "ERR SCOPE must be queue or mesh"
	errLockTTL    engine.Refusal = "ERR LOCKTTL must be a number of seconds, 1 to 2147483647"
	errRunTTL     engine.Refusal = "ERR RUNTTL must be a number of seconds, 1 to 2147483647"
	errConflict   engine.Refusal = "ERR ONCONFLICT must be drop, raise, reschedule seconds, return, replace, or debounce seconds"
	errBusy       engine.Refusal = "ERR ONBUSY must be wait, drop, reschedule seconds, or dead"
	errQuorum     engine.Refusal = "ERR QUORUM must be majority or any"
	errNotUnique  engine.Refusal = "ERR KEY, SCOPE, LIMIT, LOCKTTL, RUNTTL, ONCONFLICT, ONBUSY and QUORUM need UNIQUE"
	errNoWaiting  engine.Refusal = "ERR LOCKTTL and ONCONFLICT are about the adding, where a during-processing job meets no other"
	errNoRunning  engine.Refusal = "ERR RUNTTL and ONBUSY are about the processing, where only a during-processing or before-and-during-processing job meets another"
	errWindowTime engine.Refusal = "ERR LOCKTTL contradicts UNIQUE window, which has its TTL"
	errLimitOne   engine.Refusal = "ERR ONCONFLICT return, replace and debounce need LIMIT 1"
	errDebounce   engine.Refusal = "ERR ONCONFLICT debounce needs a DELAY"
	errDebounceOf engine.Refusal = "ERR ONCONFLICT debounce is for before-processing, before-and-during-processing and until-processed"
	errLongBound  engine.Refusal = "ERR The specified debounce is greater than TTL. Job refused since would never be delivered"
	errPutOffTTL  engine.Refusal = "ERR The specified reschedule is greater than TTL. Job refused since would never be delivered"
)

// Bits for the options of uniqueness that were given.
const (
	gaveKey settingBits = 1 << iota
	gaveScope
	gaveLockTTL
	gaveRunTTL
	gaveConflict
	gaveBusy
	gaveQuorum
	gaveUnique

	gaveLimit settingBits = 1 << 30

	uniqueBits = 1<<8 - 1 | gaveLimit
)

var strategyNames = [...]string{
	store.UniqueBefore: "before-processing",
	store.UniqueDuring: "during-processing",
	store.UniqueBoth:   "before-and-during-processing",
	store.UniqueUntil:  "until-processed",
	store.UniqueWindow: "window",
}

var conflictNames = [...]string{
	store.ConflictDrop: "drop", store.ConflictRaise: "raise", store.ConflictReschedule: "reschedule",
	store.ConflictReturn: "return", store.ConflictReplace: "replace", store.ConflictDebounce: "debounce",
}

var busyNames = [...]string{
	store.BusyWait: "wait", store.BusyDrop: "drop", store.BusyReschedule: "reschedule", store.BusyDead: "dead",
}

// named finds a word among lower-case names; the word's case doesn't matter.
func named(names []string, arg []byte) (uint8, bool) {
	for i, name := range names {
		if name != "" && same(arg, name) {
			return uint8(i), true
		}
	}
	return 0, false
}

// same compares a word with a lower-case name; the word's case doesn't matter.
func same(arg []byte, name string) bool {
	if len(arg) != len(name) || string(arg) == name {
		return len(arg) == len(name)
	}
	for i := range len(name) {
		c := arg[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != name[i] {
			return false
		}
	}
	return true
}

// parseUnique reads the option of uniqueness at argument i into u. took is how many
// arguments the option has, 0 if it is another option. given collects the bits of the
// options that were read.
func parseUnique(c args, i int, u *engine.Unique, given *settingBits) (took int, err error) {
	opt, last := c.Arg(i), c.NArgs()-1
	if i == last {
		return 0, nil
	}
	value, took, ok := c.Arg(i+1), 2, true
	// seconds reads the number after a word that needs one.
	seconds := func(at int, into *int64) bool {
		if at > last {
			return false
		}
		*into, ok = between(c.Arg(at), 1, engine.MaxSeconds)
		return ok
	}
	switch {
	case is(opt, "UNIQUE"):
		if u.Strategy == store.UniqueWindow && *given&gaveLockTTL == 0 {
			u.LockTTL = 0 // it was the window's TTL
		}
		*given |= gaveUnique
		if same(value, "none") {
			u.Strategy = 0
			return 2, nil
		}
		if u.Strategy, ok = named(strategyNames[:], value); !ok {
			return 0, errStrategy
		}
		if u.Strategy == store.UniqueWindow {
			if i+2 > last || !is(c.Arg(i+2), "TTL") || !seconds(i+3, &u.LockTTL) {
				return 0, errWindow
			}
			took = 4
		}
	case is(opt, "KEY"):
		*given |= gaveKey
		if len(value) > store.MaxUniqueKey {
			return 0, errKey
		}
		u.Keyed, u.Key = true, value
	case is(opt, "SCOPE"):
		*given |= gaveScope
		if u.Mesh = same(value, "mesh"); !u.Mesh && !same(value, "queue") {
			return 0, errScope
		}
	case is(opt, "LIMIT"):
		*given |= gaveLimit
		limit, ok := between(value, 1, store.MaxLimit)
		if !ok {
			return 0, errLimit
		}
		u.Limit = int(limit)
	case is(opt, "LOCKTTL"):
		*given |= gaveLockTTL
		if !seconds(i+1, &u.LockTTL) {
			return 0, errLockTTL
		}
	case is(opt, "RUNTTL"):
		*given |= gaveRunTTL
		if !seconds(i+1, &u.RunTTL) {
			return 0, errRunTTL
		}
	case is(opt, "ONCONFLICT"):
		*given |= gaveConflict
		if u.Conflict, ok = named(conflictNames[:], value); !ok {
			return 0, errConflict
		}
		if u.ConflictDelay = 0; u.Conflict == store.ConflictReschedule || u.Conflict == store.ConflictDebounce {
			if took = 3; !seconds(i+2, &u.ConflictDelay) {
				return 0, errConflict
			}
		}
	case is(opt, "ONBUSY"):
		*given |= gaveBusy
		if u.Busy, ok = named(busyNames[:], value); !ok {
			return 0, errBusy
		}
		if u.BusyDelay = 0; u.Busy == store.BusyReschedule {
			if took = 3; !seconds(i+2, &u.BusyDelay) {
				return 0, errBusy
			}
		}
	case is(opt, "QUORUM"):
		*given |= gaveQuorum
		if u.Any = same(value, "any"); !u.Any && !same(value, "majority") {
			return 0, errQuorum
		}
	default:
		return 0, nil
	}
	return took, nil
}

// checkUnique checks the options of uniqueness together. Options that were given must not
// contradict each other. An option that comes from the queue's settings is dropped instead,
// if it doesn't fit. delays says whether the job is given a delay, and not a time (AT).
func checkUnique(a *engine.Add, given settingBits, delays bool) error {
	u := &a.Unique
	if u.Strategy == 0 {
		if given&^gaveUnique != 0 {
			return errNotUnique
		}
		a.Unique = engine.Unique{}
		return nil
	}
	runs := u.Strategy == store.UniqueDuring || u.Strategy == store.UniqueBoth
	if !runs {
		if given&(gaveRunTTL|gaveBusy) != 0 {
			return errNoRunning
		}
		u.RunTTL, u.Busy, u.BusyDelay = 0, store.BusyWait, 0
	}
	switch u.Strategy {
	case store.UniqueDuring:
		if given&(gaveLockTTL|gaveConflict) != 0 {
			return errNoWaiting
		}
		u.LockTTL, u.Conflict, u.ConflictDelay = 0, store.ConflictDrop, 0
	case store.UniqueWindow:
		if given&gaveLockTTL != 0 {
			return errWindowTime
		}
	}
	if u.Limit > 1 {
		if err := checkLimit(u, given); err != nil {
			return err
		}
	}
	if u.Conflict == store.ConflictDebounce && (!delays || u.Strategy == store.UniqueWindow) {
		switch {
		case given&gaveConflict == 0:
			u.Conflict = store.ConflictReplace
		case !delays:
			return errDebounce
		default:
			return errDebounceOf
		}
	}
	if u.Conflict != store.ConflictReschedule && u.Conflict != store.ConflictDebounce {
		u.ConflictDelay = 0
	}
	if u.Busy != store.BusyReschedule {
		u.BusyDelay = 0
	}
	if u.ConflictDelay >= a.TTL && u.Conflict == store.ConflictDebounce {
		return errLongBound
	}
	if u.ConflictDelay >= a.TTL || u.BusyDelay >= a.TTL {
		return errPutOffTTL
	}
	return nil
}

// checkLimit is checkUnique for a key that several jobs may have: then there is no one job that an ADDJOB could mean.
func checkLimit(u *engine.Unique, given settingBits) error {
	switch means := u.Conflict == store.ConflictReturn || u.Conflict == store.ConflictReplace || u.Conflict == store.ConflictDebounce; {
	case !means:
	case given&gaveLimit != 0 && given&gaveConflict != 0:
		return errLimitOne
	case given&gaveLimit != 0:
		u.Conflict = store.ConflictDrop
	default:
		u.Limit = 1
	}
	return nil
}
