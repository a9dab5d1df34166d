package commands

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"jobmesh/cgo/record"
	"jobmesh/module/engine"
	"jobmesh/rm"
)

// Settings of queues: which settings apply to a queue, and how they are saved. There are
// few, and they are looked up in Go. Their text lies in the server's memory, from where C
// saves it.

// settings are those of one name or pattern. An option that isn't in set has its zero
// value, which has no meaning.
type settings struct {
	name    string
	pattern *glob // nil: name is the name of a queue
	set     uint16
	exclude bool
	add     engine.Add
	saved   []byte // its part of the text of all settings, written by put
}

// apply copies the settings into a, before ADDJOB's options overwrite them.
func (s *settings) apply(a *engine.Add) {
	a.Unique = s.add.Unique
	a.Replicate, a.Delay, a.MaxLen = s.add.Replicate, s.add.Delay, s.add.MaxLen
	if s.set&setTTL != 0 {
		a.TTL = s.add.TTL
	}
	if s.set&setRetry != 0 {
		a.Retry = s.add.Retry
	}
}

// queueSettings are all settings.
type queueSettings struct {
	exact    map[string]*settings
	patterns []*settings // the longest first
	sorted   []*settings // all of them, by name
	kind     *rm.DataType
	save     func(text []byte) // puts the text where C saves it from
	loading  bool              // a data set is being loaded; the text is saved when that has ended
}

// any says whether there are settings.
func (q *queueSettings) any() bool { return len(q.sorted) > 0 }

// maxMatched is the length of the longest queue name to which patterns apply, bytes. The
// time to match grows with the name's length, and anybody who adds jobs chooses names.
const maxMatched = 1024

// Each ADDJOB is matched with all patterns. The slowest ones have many parts to search for,
// or a part with ?.
const (
	maxPatterns  = 1000
	patternCosts = 10 // such a pattern counts as this many
	plainParts   = 11
)

// room returns an error if there may be no further name or pattern.
func (q *queueSettings) room(name string) error {
	if len(q.sorted) >= maxSettings {
		return errManyConfigs
	}
	if !isPattern(name) {
		return nil
	}
	costs := newGlob(name, queueByte).costs()
	for _, s := range q.patterns {
		costs += s.pattern.costs()
	}
	if costs > maxPatterns {
		return errManyPatterns
	}
	return nil
}

// excluded are the settings of a queue that is excluded: none of its jobs is unique.
var excluded = &settings{set: setExclude, exclude: true}

// of returns the settings that apply to a queue, nil if there are none: its own, or those
// of the longest pattern that it matches. If any of these excludes the queue, of returns
// excluded.
func (q *queueSettings) of(name []byte) *settings {
	if s := q.exact[string(name)]; s != nil {
		if s.exclude {
			return excluded
		}
		return s
	}
	if len(name) > maxMatched {
		return nil
	}
	var first *settings
	for _, s := range q.patterns {
		if (first == nil || s.exclude) && s.pattern.match(name) {
			if s.exclude {
				return excluded
			}
			first = s
		}
	}
	return first
}

// isPattern says whether a name stands for several queues.
func isPattern(name string) bool {
	for i := 0; i < len(name); i++ {
		switch name[i] {
		case '\\':
			i++
		case '*', '?':
			return true
		}
	}
	return false
}

// plain removes the backslashes from a name that is no pattern.
func plain(name string) string {
	if !strings.Contains(name, `\`) {
		return name
	}
	var b []byte
	for i := 0; i < len(name); i++ {
		if name[i] == '\\' && i+1 < len(name) {
			i++
		}
		b = append(b, name[i])
	}
	return string(b)
}

// find returns the settings with this name or pattern, nil if there are none.
func (q *queueSettings) find(name string) *settings {
	if !isPattern(name) {
		return q.exact[plain(name)]
	}
	for _, s := range q.patterns {
		if s.name == name {
			return s
		}
	}
	return nil
}

func (q *queueSettings) remove(name string) bool {
	s := q.find(name)
	if s == nil {
		return false
	}
	if s.pattern == nil {
		delete(q.exact, plain(name))
	} else {
		q.patterns = slices.DeleteFunc(q.patterns, func(o *settings) bool { return o == s })
	}
	at, _ := q.place(s.name)
	q.sorted = slices.Delete(q.sorted, at, at+1)
	return true
}

// place returns the index of a name in the order of names, or the index where it would be.
func (q *queueSettings) place(name string) (at int, there bool) {
	return slices.BinarySearchFunc(q.sorted, name, func(s *settings, name string) int { return strings.Compare(s.name, name) })
}

func (q *queueSettings) put(s *settings) {
	q.remove(s.name)
	s.saved = s.encode()
	at, _ := q.place(s.name)
	q.sorted = slices.Insert(q.sorted, at, s)
	if s.pattern = nil; !isPattern(s.name) {
		if q.exact == nil {
			q.exact = map[string]*settings{}
		}
		q.exact[plain(s.name)] = s
		return
	}
	s.pattern = newGlob(s.name, queueByte)
	q.patterns = append(q.patterns, s)
	slices.SortFunc(q.patterns, func(a, b *settings) int {
		if d := len(b.name) - len(a.name); d != 0 {
			return d
		}
		return strings.Compare(a.name, b.name)
	})
}

// Format 1: a byte 1. Then for each name the count of its words, and each word after its
// length; the name is the first word. Counts and lengths have 32 bits, little endian.
const settingsFormat = 1

// encode writes the settings of one name, as a part of the text of all settings.
func (s *settings) encode() []byte {
	words := append([]string{s.name}, s.words(^uint16(0))...)
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(words)))
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(w)))
		b = append(b, w...)
	}
	return b
}

// text returns the text of all settings. put has already written each name's part, so that
// a change costs no more than a copy of the whole, even with very many settings.
func (q *queueSettings) text() []byte {
	if len(q.sorted) == 0 {
		return nil
	}
	size := 1
	for _, s := range q.sorted {
		size += len(s.saved)
	}
	b := append(make([]byte, 0, size), settingsFormat)
	for _, s := range q.sorted {
		b = append(b, s.saved...)
	}
	return b
}

// load reads what text made. If it can't be read, load changes nothing.
func (q *queueSettings) load(b []byte) error {
	fresh := queueSettings{kind: q.kind}
	if len(b) > 0 && b[0] > settingsFormat {
		return fmt.Errorf("ERR settings of format %d, this version reads %d", b[0], settingsFormat)
	}
	if len(b) > 0 && b[0] != settingsFormat {
		return errDamaged
	}
	at, bad := 1, false
	number := func() int {
		if len(b)-at < 4 {
			bad = true
			return 0
		}
		at += 4
		return int(binary.LittleEndian.Uint32(b[at-4:]))
	}
	for at < len(b) {
		words := list{nil, nil}
		for n := number(); n > 0 && !bad; n-- {
			length := number()
			if bad || len(b)-at < length {
				return errDamaged
			}
			words = append(words, b[at:at+length])
			at += length
		}
		if bad || len(words) < 3 {
			return errDamaged
		}
		s := &settings{name: string(words[2])}
		if err := parseSettings(withoutResidue(words), 3, s); err != nil {
			return err
		}
		fresh.put(s)
	}
	q.exact, q.patterns, q.sorted = fresh.exact, fresh.patterns, fresh.sorted
	q.changed()
	return nil
}

// withoutResidue repairs settings that a former release has saved. There ONCONFLICT or ONBUSY
// kept the seconds of reschedule when it was set to another word, which takes none: so
// "ONCONFLICT drop 5" was saved, which can't be parsed. The seconds are removed.
func withoutResidue(words list) list {
	for i := 3; i+2 < len(words); i += 2 {
		switch {
		case is(words[i], "UNIQUE") && same(words[i+1], "window"):
			i += 2
		case !is(words[i], "ONCONFLICT") && !is(words[i], "ONBUSY"):
		case same(words[i+1], "reschedule"):
			i++
		default:
			if _, number := between(words[i+2], 1, engine.MaxSeconds); number {
				words = slices.Delete(words, i+2, i+3)
			}
		}
	}
	return words
}

// reset forgets all settings, before others are loaded.
func (q *queueSettings) reset() {
	q.exact, q.patterns, q.sorted = nil, nil, nil
	q.changed()
}

// changed puts the text where C saves it from.
func (q *queueSettings) changed() {
	if q.save != nil && !q.loading {
		q.save(q.text())
	}
}

// before makes the data type for what is saved beside the keys. No key has this type.
func (q *queueSettings) before() {
	q.kind.Methods = rm.Methods(record.NoteMethods())
	q.save = record.SetNote
}

func newSettingsType(q *queueSettings) *rm.DataType {
	q.kind = &rm.DataType{
		Name:    "jobmesh-s",
		Version: settingsFormat,
		Load: func(*rm.Reader, int) (unsafe.Pointer, error) {
			return nil, errors.New("no key has this type")
		},
		Drop: func(unsafe.Pointer) {},
		LoadAux: func(r *rm.Reader, version int) error {
			if version > settingsFormat {
				return fmt.Errorf("settings of format %d, this version reads %d", version, settingsFormat)
			}
			return r.Bytes(q.load)
		},
	}
	return q.kind
}
