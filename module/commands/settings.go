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

// The settings of queues, which of them count for a queue, and how they are saved.
// They are few and looked up in Go. Their text is saved: it lies in the server's memory,
// from where C writes it.

// settings are those of one name or pattern. An option that isn't in set has its zero
// value, which doesn't count.
type settings struct {
	name    string
	pattern *glob // nil: it is the name of a queue
	set     uint16
	exclude bool
	add     engine.Add
}

// apply puts the settings where ADDJOB's options will overwrite them.
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

// queueSettings are all there are.
type queueSettings struct {
	exact    map[string]*settings
	patterns []*settings // the longest first
	kind     *rm.DataType
	save     func(text []byte) // to where C saves it from
}

// any says whether there are settings.
func (q *queueSettings) any() bool { return len(q.exact)+len(q.patterns) > 0 }

// maxMatched is the length of the longest queue's name that patterns count for, bytes: the
// time that it takes to match grows with it, and anybody who adds jobs chooses names.
const maxMatched = 1024

// Each ADDJOB is matched with all patterns. What takes longest is to search for many
// parts, or for one with ?.
const (
	maxPatterns  = 1000
	patternCosts = 10 // so many such a pattern counts as
	plainParts   = 11
)

// room says whether there may be one more name or pattern.
func (q *queueSettings) room(name string) error {
	if len(q.exact)+len(q.patterns) >= maxSettings {
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

// excluded are the settings of a queue that is excluded: in it no job is unique.
var excluded = &settings{set: setExclude, exclude: true}

// of finds what counts for a queue, nil where nothing does: its own, or those of the
// longest pattern that it matches, unless any of these excludes it.
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

// plain takes the backslashes out of a name that is no pattern.
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

// find is the settings that bear a name or pattern.
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
	if !isPattern(name) {
		_, there := q.exact[plain(name)]
		delete(q.exact, plain(name))
		return there
	}
	n := len(q.patterns)
	q.patterns = slices.DeleteFunc(q.patterns, func(s *settings) bool { return s.name == name })
	return len(q.patterns) < n
}

func (q *queueSettings) put(s *settings) {
	q.remove(s.name)
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

// all are the settings in the order of their names.
func (q *queueSettings) all() []*settings {
	list := slices.Clone(q.patterns)
	for _, s := range q.exact {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *settings) int { return strings.Compare(a.name, b.name) })
	return list
}

// Format 1: a byte 1; for each name the count of its words, and each word, the
// name first, after its length (32 bits, little endian).
const settingsFormat = 1

func (q *queueSettings) text() []byte {
	all := q.all()
	if len(all) == 0 {
		return nil
	}
	b := []byte{settingsFormat}
	word := func(w string) {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(w)))
		b = append(b, w...)
	}
	for _, s := range all {
		words := []string{s.name}
		for _, o := range options() {
			if s.set&o.bit != 0 {
				words = append(append(words, o.name), o.words(s)...)
			}
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(len(words)))
		for _, w := range words {
			word(w)
		}
	}
	return b
}

// load reads what text made; nothing is changed where that can't be read.
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
		if err := parseSettings(words, 3, s); err != nil {
			return err
		}
		fresh.put(s)
	}
	q.exact, q.patterns = fresh.exact, fresh.patterns
	q.changed()
	return nil
}

// changed puts the text where C saves it from.
func (q *queueSettings) changed() {
	if q.save != nil {
		q.save(q.text())
	}
}

// before makes the data type that no key has, for what it saves beside the keys.
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
