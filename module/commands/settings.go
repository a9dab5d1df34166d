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
	"jobmesh/module/entries"
	"jobmesh/rm"
)

// Settings of queues: which settings apply to a queue, and how they are saved. There are
// few, and they are looked up in Go. They are kept as entries that all nodes are to know alike
// (package entries). The entries' text lies in the server's memory, from where C saves it.

// settings are those of one name or pattern. An option that isn't in set has its zero
// value, which has no meaning.
type settings struct {
	name    string
	pattern *glob // nil: name is the name of a queue
	set     settingBits
	exclude bool
	add     engine.Add
	policy  engine.Policy
	limits  engine.Limits
	deadMax int64        // dead letters that the queue keeps; 0: all
	unknown []oneSetting // that a newer release has made: they are kept, and told to others
}

// apply copies the settings into a, before ADDJOB's options overwrite them.
func (s *settings) apply(a *engine.Add) {
	a.Unique = s.add.Unique
	a.Replicate, a.Delay, a.MaxLen, a.Priority = s.add.Replicate, s.add.Delay, s.add.MaxLen, s.add.Priority
	if s.set&setTTL != 0 {
		a.TTL = s.add.TTL
	}
	if s.set&setRetry != 0 {
		a.Retry = s.add.Retry
	}
}

// queueSettings are all settings.
type queueSettings struct {
	exact     map[string]*settings
	patterns  []*settings          // the longest first
	matched   map[string]*settings // what the patterns say for names that were asked for since settings have changed
	sorted    []*settings          // all of them, by name
	policies  engine.Policies
	policed   int // how many say what becomes of jobs that fail
	counting  int // how many of those say MAXDELIVERIES
	keeping   int // how many of those say KEEP
	rated     int // how many say RATE or CONCURRENCY
	deadMaxed int // how many say DEADMAX
	kind      *rm.DataType
	saves     bool // C saves the entries; it doesn't before the module is loaded
	loading   bool // a data set is being loaded; the entries are put where C saves them from when that has ended
	dirty     bool // entries have changed since then
}

// any says whether there are settings.
func (q *queueSettings) any() bool { return len(q.sorted) > 0 }

// maxMatched is the length of the longest queue name to which patterns apply, bytes. The
// time to match grows with the name's length, and anybody who adds jobs chooses names.
const maxMatched = 1024

// mostMatched is for how many names it is remembered what the patterns say: many jobs of a queue may end in one tick, and each asks.
const mostMatched = 1024

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
	if len(q.patterns) == 0 || len(name) > maxMatched {
		return nil
	}
	s, known := q.matched[string(name)]
	if !known {
		if s = q.match(name); len(q.matched) >= mostMatched {
			clear(q.matched)
		} else if q.matched == nil {
			q.matched = map[string]*settings{}
		}
		q.matched[string(name)] = s
	}
	return s
}

// match finds the settings of the patterns that a name matches.
func (q *queueSettings) match(name []byte) *settings {
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
	q.police(s, -1)
	return true
}

// police counts settings that come (1) or go (-1) for what the engine is told of all.
func (q *queueSettings) police(s *settings, by int) {
	if s.policy.Set != 0 {
		q.policed += by
	}
	if s.policy.Set&engine.SetMaxDeliveries != 0 {
		q.counting += by
	}
	if s.policy.Set&engine.SetKeep != 0 {
		q.keeping += by
	}
	if s.set&setLimits != 0 {
		q.rated += by
	}
	if s.deadMax > 0 {
		q.deadMaxed += by
	}
	q.policiesChanged()
}

// policiesChanged tells the engine of what there is by the counts of settings.
func (q *queueSettings) policiesChanged() {
	q.policies.Any, q.policies.Counting, q.policies.Keeping = q.policed > 0, q.counting > 0, q.keeping > 0
	q.policies.Rated, q.policies.DeadMaxed = q.rated > 0, q.deadMaxed > 0
	q.newGeneration()
}

// newGeneration tells the engine that settings have changed.
func (q *queueSettings) newGeneration() {
	clear(q.matched)
	if q.policies.Generation++; q.policies.Generation == 0 {
		q.policies.Generation = 1
	}
}

// limitsOf returns the limits that the settings of a queue say.
func (q *queueSettings) limitsOf(queue []byte) engine.Limits {
	s := q.of(queue)
	if s == nil || s.set&setLimits == 0 {
		return engine.Limits{}
	}
	limits := s.limits
	limits.Any = s.add.Unique.Any
	return limits
}

// deadMaxOf returns how many dead letters a queue keeps by its settings; 0: all.
func (q *queueSettings) deadMaxOf(queue []byte) int64 {
	if s := q.of(queue); s != nil {
		return s.deadMax
	}
	return 0
}

// policyOf returns what the settings of a queue say of jobs that fail; nil: nothing.
func (q *queueSettings) policyOf(queue []byte) *engine.Policy {
	if s := q.of(queue); s != nil && s.policy.Set != 0 {
		return &s.policy
	}
	return nil
}

// place returns the index of a name in the order of names, or the index where it would be.
func (q *queueSettings) place(name string) (at int, there bool) {
	return slices.BinarySearchFunc(q.sorted, name, func(s *settings, name string) int { return strings.Compare(s.name, name) })
}

func (q *queueSettings) put(s *settings) {
	q.remove(s.name)
	q.police(s, 1)
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

// Format 2, which is saved: a byte 2, then the entries that all nodes are to know alike, and the node's own (package
// entries). Format 1: a byte 1, then for each name the count of its words, and each word after its length; the name is
// the first word. Counts and lengths have 32 bits, little endian.
const settingsFormat = record.NoteFormat

// The build fails where the two numbers of pages aren't the same.
var _, _ = [record.NotePages - entries.Pages]struct{}{}, [entries.Pages - record.NotePages]struct{}{}

// value is what an entry says of settings: for each one the count of its words, and each word after its length.
func (s *settings) value() (b []byte) {
	b = []byte{}
	for _, o := range options {
		if s.set&o.bit == 0 {
			continue
		}
		words := append([]string{o.name}, o.words(s)...)
		b = binary.AppendUvarint(b, uint64(len(words)))
		for _, w := range words {
			b = binary.AppendUvarint(b, uint64(len(w)))
			b = append(b, w...)
		}
	}
	for _, u := range s.unknown {
		if o, known := optionNamed(u.words[0]); !known || s.set&o.bit == 0 {
			b = append(b, u.bytes...)
		}
	}
	return b
}

// oneSetting is a setting as an entry's value has it.
type oneSetting struct {
	words list
	bytes []byte // with their count and lengths
}

// settingsOf reads what value made. Settings that this release doesn't know, or can't have together with the others, are
// set aside. A value that can't be read at all says nothing.
func settingsOf(name string, value []byte) *settings {
	var all []oneSetting
	for rest := value; len(rest) > 0; {
		u := oneSetting{bytes: rest}
		number := func() int {
			n, used := binary.Uvarint(rest)
			if used <= 0 || n > uint64(len(rest)) {
				rest = nil
				return 0
			}
			rest = rest[used:]
			return int(n)
		}
		for n := number(); n > 0 && rest != nil; n-- {
			size := number()
			if size > len(rest) {
				rest = nil
				break
			}
			u.words, rest = append(u.words, rest[:size]), rest[size:]
		}
		if len(u.words) == 0 {
			break
		}
		u.bytes = u.bytes[:len(u.bytes)-len(rest)]
		all = append(all, u)
	}
	s, ok := settingsFrom(name, all)
	if !ok {
		// One by one, as far as they agree.
		var some []oneSetting
		s = &settings{name: name}
		for again := true; again; {
			again = false
			for i, u := range all {
				if more, ok := settingsFrom(name, append(some[:len(some):len(some)], u)); ok {
					s, some, again = more, append(some, u), true
					all = slices.Delete(all, i, i+1)
					break
				}
			}
		}
		s.unknown = all
	}
	return s
}

// settingsFrom parses settings together; false: one of them isn't known, or contradicts another.
func settingsFrom(name string, all []oneSetting) (s *settings, ok bool) {
	s = &settings{name: name}
	var words list
	for _, u := range all {
		words = append(words, u.words...)
	}
	return s, parseSettings(words, 0, s) == nil
}

// canonical is the one spelling of a name that several spellings have: a backslash need only stand before *, ? and \.
func canonical(name string) string {
	if isPattern(name) || !strings.Contains(name, `\`) {
		return name
	}
	var b []byte
	for _, c := range []byte(plain(name)) {
		if c == '*' || c == '?' || c == '\\' {
			b = append(b, '\\')
		}
		b = append(b, c)
	}
	return string(b)
}

// settingsKind is the kind of the entries that count here.
func (m *module) settingsKind() entries.Kind {
	if m.ownSettings {
		return engine.EntryOwn
	}
	return engine.EntrySettings
}

// loadSettings reads settings that were saved. If they can't be read, it changes nothing.
func (m *module) loadSettings(b []byte) error {
	switch {
	case len(b) == 0:
		return nil
	case b[0] > settingsFormat:
		return fmt.Errorf("ERR settings of format %d, this version reads %d", b[0], settingsFormat)
	case b[0] == 1:
		return m.loadFormer(b)
	case b[0] != settingsFormat:
		return errDamaged
	}
	var all []*entries.Entry
	if err := entries.Parse(b[1:], func(e *entries.Entry) error {
		all = append(all, e)
		return nil
	}); err != nil {
		return errDamaged
	}
	for _, e := range all {
		if m.node.LoadEntry(e) {
			m.settings.learn(e, m.settingsKind())
		}
	}
	m.saveSettings()
	return nil
}

// loadFormer reads format 1.
func (m *module) loadFormer(b []byte) error {
	all, err := formerSettings(b)
	if err != nil {
		return err
	}
	for _, s := range all {
		m.forceSettings(engine.EntrySettings, s.name, s.value())
	}
	m.saveSettings()
	return nil
}

// forceSettings takes settings, or their end (nil), from what a former release has logged or saved.
func (m *module) forceSettings(kind entries.Kind, name string, value []byte) {
	m.node.ForceEntry(kind, name, value)
	m.settings.learn(&entries.Entry{Kind: kind, Name: name, Value: value, Deleted: value == nil}, m.settingsKind())
}

// learn carries out an entry, if it is one of the settings that count here.
func (q *queueSettings) learn(e *entries.Entry, kind entries.Kind) {
	if q.dirty = true; e.Kind != kind {
		return
	}
	if e.Deleted {
		q.remove(e.Name)
	} else {
		q.put(settingsOf(e.Name, e.Value))
	}
}

// settingsAnew follows a change of which settings count.
func (m *module) settingsAnew() {
	m.settings.reset()
	if m.node == nil {
		return
	}
	for e := range m.node.Entries().AllOf(m.settingsKind()) {
		m.settings.learn(e, e.Kind)
	}
}

// saveSettings puts the entries that have changed where C saves them from.
func (m *module) saveSettings() {
	if q := &m.settings; q.dirty && q.saves && !q.loading && m.node != nil {
		q.dirty = false
		table := m.node.Entries()
		if table.IsNew() {
			record.DropNote()
		}
		table.Changes(record.SetNote)
	}
}

// settingsText is all entries, as they are saved; nil: there are none.
func (m *module) settingsText() []byte {
	if m.node.Entries().Empty() {
		return nil
	}
	return m.node.Entries().Text(settingsFormat)
}

// formerSettings reads format 1.
func formerSettings(b []byte) (all []*settings, err error) {
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
				return nil, errDamaged
			}
			words = append(words, b[at:at+length])
			at += length
		}
		if bad || len(words) < 3 || len(words[2]) > entries.MaxName {
			return nil, errDamaged
		}
		s := &settings{name: canonical(string(words[2]))}
		if err := parseSettings(withoutResidue(words), 3, s); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
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
		case same(words[i+1], "reschedule"), same(words[i+1], "debounce"):
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
	q.policed, q.counting, q.keeping, q.rated, q.deadMaxed, q.dirty = 0, 0, 0, 0, 0, true
	q.policiesChanged()
}

// before makes the data type for what is saved beside the keys. No key has this type.
func (q *queueSettings) before() {
	q.policies.Of, q.policies.LimitsOf, q.policies.DeadMaxOf, q.policies.Generation = q.policyOf, q.limitsOf, q.deadMaxOf, 1
	q.kind.Methods = rm.Methods(record.NoteMethods())
	q.saves = true
}

func (m *module) newSettingsType() *rm.DataType {
	m.settings.kind = &rm.DataType{
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
			return r.Bytes(m.loadSettings)
		},
	}
	return m.settings.kind
}
