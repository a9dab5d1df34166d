package commands

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"jobmesh/cgo/record"
	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// Queue settings: what an ADDJOB that doesn't say otherwise has in a queue, or in
// all queues of a pattern. They are few and looked up in Go; what is saved is their
// text, in the server's memory, from where C writes it.

// Limits of settings.
const (
	maxSettings = 10_000
	maxPattern  = 1024 // bytes
)

// Errors of QCONFIG.
const (
	errNoOption    engine.Refusal = "ERR there is no such setting: UNIQUE, KEY, SCOPE, LOCKTTL, RUNTTL, ONCONFLICT, ONBUSY, QUORUM, REPLICATE, RETRY, TTL, DELAY, MAXLEN and EXCLUDE are"
	errExclude     engine.Refusal = "ERR EXCLUDE must be yes or no"
	errManyConfigs engine.Refusal = "ERR there are 10000 settings already: use patterns"
	errLongPattern engine.Refusal = "ERR the name must have 1024 bytes at most"
	errRestoreOnly engine.Refusal = "ERR QCONFIG RESTORE is a special command only processed from AOF"
	errDamaged     engine.Refusal = "ERR damaged settings"
)

// Options that aren't about uniqueness; the others' bits are parseUnique's.
const (
	setReplicate = 1 << (iota + 8)
	setRetry
	setTTL
	setDelay
	setMaxLen
	setExclude
)

// settings are those of one name or pattern. What isn't in set is the zero value,
// or none.
type settings struct {
	name    string
	pattern bool
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

// of finds what counts for a queue, nil where nothing does: its own, or those of the
// longest pattern that it matches, unless any of these excludes it.
func (q *queueSettings) of(name []byte) *settings {
	if s := q.exact[string(name)]; s != nil {
		if s.exclude {
			return nil
		}
		return s
	}
	var first *settings
	for _, s := range q.patterns {
		if (first == nil || s.exclude) && matches(s.name, name) {
			if s.exclude {
				return nil
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

// matches says whether a name fits a pattern: * is any text, ? any byte, \ takes
// the next byte as it is.
func matches(pattern string, name []byte) bool {
	p, i, star, mark := 0, 0, -1, 0
	for i < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, i
			p++
			continue
		case p < len(pattern) && pattern[p] == '?':
			p, i = p+1, i+1
			continue
		case p+1 < len(pattern) && pattern[p] == '\\' && pattern[p+1] == name[i]:
			p, i = p+2, i+1
			continue
		case p < len(pattern) && pattern[p] != '\\' && pattern[p] == name[i]:
			p, i = p+1, i+1
			continue
		case star < 0:
			return false
		}
		// Let the last star take one byte more.
		mark++
		p, i = star+1, mark
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
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
	if s.pattern = isPattern(s.name); !s.pattern {
		if q.exact == nil {
			q.exact = map[string]*settings{}
		}
		q.exact[plain(s.name)] = s
		return
	}
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

// parseSettings reads options from argument i on over what s has already.
func parseSettings(c args, i int, s *settings) error {
	n := c.NArgs()
	for i < n {
		if i+1 == n {
			return errSyntax
		}
		opt, value := c.Arg(i), c.Arg(i+1)
		num := func(bit uint16, into *int64, lo, hi int64, err error) error {
			v, ok := between(value, lo, hi)
			if !ok {
				return err
			}
			*into, s.set = v, s.set|bit
			return nil
		}
		var err error
		switch {
		case is(opt, "REPLICATE"):
			var v int64
			err = num(setReplicate, &v, 1, engine.MaxReplicate, errReplicate)
			s.add.Replicate = int(v)
		case is(opt, "RETRY"):
			err = num(setRetry, &s.add.Retry, 0, engine.MaxSeconds, errRetry)
		case is(opt, "TTL"):
			err = num(setTTL, &s.add.TTL, 1, engine.MaxSeconds, errTTL)
		case is(opt, "DELAY"):
			err = num(setDelay, &s.add.Delay, 0, engine.MaxSeconds, errDelay)
		case is(opt, "MAXLEN"):
			err = num(setMaxLen, &s.add.MaxLen, 1, 1<<63-1, errMaxLen)
		case is(opt, "EXCLUDE"):
			if s.exclude = same(value, "yes"); !s.exclude && !same(value, "no") {
				return errExclude
			}
			s.set |= setExclude
		default:
			var given uint8
			took, err := parseUnique(c, i, &s.add.Unique, &given)
			if err != nil {
				return err
			}
			if took == 0 {
				return errNoOption
			}
			if given&gaveKey != 0 {
				s.add.Unique.Key = bytes.Clone(s.add.Unique.Key)
			}
			s.set |= uint16(given)
			i += took
			continue
		}
		if err != nil {
			return err
		}
		i += 2
	}
	return s.check()
}

// check finds out whether the settings contradict each other.
func (s *settings) check() error {
	a := s.add
	if s.set&setTTL == 0 {
		a.TTL = engine.DefaultTTL
	}
	if a.Delay >= a.TTL {
		return errDelayTTL
	}
	if s.set&setRetry != 0 && a.Retry == 0 && a.Replicate > 1 {
		return errAtMostOnce
	}
	given := uint8(s.set)
	if given == 0 || a.Unique.Strategy == 0 && given&gaveUnique == 0 {
		return nil // times and rules for those who ask for uniqueness themselves
	}
	return settleUnique(&a, given)
}

// option is one setting's name with its words.
type option struct {
	bit   uint16
	name  string
	words func(s *settings) []string
}

func decimal(v int64) []string { return []string{strconv.FormatInt(v, 10)} }

func withDelay(name string, delay int64) []string {
	if delay > 0 {
		return []string{name, strconv.FormatInt(delay, 10)}
	}
	return []string{name}
}

func either(yes bool, a, b string) []string {
	if yes {
		return []string{a}
	}
	return []string{b}
}

// options are all settings, in the order in which they are shown.
func options() []option {
	return []option{
		{gaveUnique, "unique", func(s *settings) []string {
			u := &s.add.Unique
			switch u.Strategy {
			case 0:
				return []string{"none"}
			case store.UniqueWindow:
				return []string{"window", "ttl", strconv.FormatInt(u.LockTTL, 10)}
			}
			return []string{strategyNames[u.Strategy]}
		}},
		{gaveKey, "key", func(s *settings) []string { return []string{string(s.add.Unique.Key)} }},
		{gaveScope, "scope", func(s *settings) []string { return either(s.add.Unique.Mesh, "mesh", "queue") }},
		{gaveLockTTL, "lockttl", func(s *settings) []string { return decimal(s.add.Unique.LockTTL) }},
		{gaveRunTTL, "runttl", func(s *settings) []string { return decimal(s.add.Unique.RunTTL) }},
		{gaveConflict, "onconflict", func(s *settings) []string {
			return withDelay(conflictNames[s.add.Unique.Conflict], s.add.Unique.ConflictDelay)
		}},
		{gaveBusy, "onbusy", func(s *settings) []string {
			return withDelay(busyNames[s.add.Unique.Busy], s.add.Unique.BusyDelay)
		}},
		{gaveQuorum, "quorum", func(s *settings) []string { return either(s.add.Unique.Any, "any", "majority") }},
		{setReplicate, "replicate", func(s *settings) []string { return decimal(int64(s.add.Replicate)) }},
		{setRetry, "retry", func(s *settings) []string { return decimal(s.add.Retry) }},
		{setTTL, "ttl", func(s *settings) []string { return decimal(s.add.TTL) }},
		{setDelay, "delay", func(s *settings) []string { return decimal(s.add.Delay) }},
		{setMaxLen, "maxlen", func(s *settings) []string { return decimal(s.add.MaxLen) }},
		{setExclude, "exclude", func(s *settings) []string { return either(s.exclude, "yes", "no") }},
	}
}

func optionNamed(arg []byte) (option, bool) {
	for _, o := range options() {
		if same(arg, o.name) {
			return o, true
		}
	}
	return option{}, false
}

// --- commands ----------------------------------------------------------------

func (m *module) configSet(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	name := string(c.Arg(2))
	if len(name) > maxPattern {
		fail(c, errLongPattern)
		return
	}
	s := &settings{name: name}
	if old := m.settings.find(name); old != nil {
		*s = *old
	} else if len(m.settings.exact)+len(m.settings.patterns) >= maxSettings {
		fail(c, errManyConfigs)
		return
	}
	if err := parseSettings(c, 3, s); err != nil {
		fail(c, err)
		return
	}
	m.settings.put(s)
	m.settings.changed()
	c.Simple("OK")
	c.Dirty()
}

func (m *module) configDelete(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	if !m.settings.remove(string(c.Arg(2))) {
		c.Int(0)
		return
	}
	m.settings.changed()
	c.Int(1)
	c.Dirty()
}

// configUnset takes single settings away.
func (m *module) configUnset(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	old := m.settings.find(string(c.Arg(2)))
	s := &settings{name: string(c.Arg(2))}
	if old != nil {
		*s = *old
	}
	var gone uint16
	for i := 3; i < c.NArgs(); i++ {
		o, ok := optionNamed(c.Arg(i))
		if !ok {
			fail(c, errNoOption)
			return
		}
		gone |= o.bit
	}
	left := &settings{name: s.name}
	words := [][]byte{nil, nil, nil}
	for _, o := range options() {
		if s.set&^gone&o.bit != 0 {
			words = append(words, []byte(o.name))
			for _, w := range o.words(s) {
				words = append(words, []byte(w))
			}
		}
	}
	if err := parseSettings(list(words), 3, left); err != nil {
		fail(c, err)
		return
	}
	if s.set&gone == 0 {
		c.Int(0)
		return
	}
	if left.set == 0 {
		m.settings.remove(s.name)
	} else {
		m.settings.put(left)
	}
	m.settings.changed()
	c.Int(1)
	c.Dirty()
}

// list is arguments that nobody sent.
type list [][]byte

func (l list) NArgs() int       { return len(l) }
func (l list) Arg(i int) []byte { return l[i] }

// configGet answers what counts for a queue.
func (m *module) configGet(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	wanted := uint16(1<<16 - 1)
	if c.NArgs() > 3 {
		wanted = 0
	}
	for i := 3; i < c.NArgs(); i++ {
		o, ok := optionNamed(c.Arg(i))
		if !ok {
			fail(c, errNoOption)
			return
		}
		wanted |= o.bit
	}
	s := m.settings.find(string(c.Arg(2)))
	if s == nil {
		s = m.settings.of(c.Arg(2))
	}
	if s == nil {
		s = &settings{}
	}
	putSettings(c, s, wanted)
}

func putSettings(c *rm.Ctx, s *settings, wanted uint16) {
	n := 0
	for _, o := range options() {
		if s.set&wanted&o.bit != 0 {
			n++
		}
	}
	c.Map(n)
	for _, o := range options() {
		if s.set&wanted&o.bit != 0 {
			c.Text(o.name)
			c.Text(strings.Join(o.words(s), " "))
		}
	}
}

func (m *module) configList(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	all := m.settings.all()
	c.Map(len(all))
	for _, s := range all {
		c.Text(s.name)
		putSettings(c, s, 1<<16-1)
	}
}

// configRestore is QCONFIG RESTORE, from a log: all settings at once.
func (m *module) configRestore(c *rm.Ctx) {
	if !c.FromPeer() {
		fail(c, errRestoreOnly)
		return
	}
	if err := m.settings.load(c.Arg(2)); err != nil {
		fail(c, err)
		return
	}
	c.Simple("OK")
	c.Dirty()
}

// --- saving ------------------------------------------------------------------

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

// relogSettings logs the settings once more.
func (m *module) relogSettings(c *rm.Ctx) {
	if text := m.settings.text(); text != nil {
		c.Replicate(m.effect.qconfig, 2)
		c.Text("RESTORE")
		copy(c.BulkBuffer(len(text)), text)
	}
}

// uniqueConfig turns uniqueness on or off. It is no bool, which would refuse "off".
func (m *module) uniqueConfig() *rm.Config {
	return rm.TextConfig("unique", "yes", false,
		func() string {
			if m.uniqueOff {
				return "no"
			}
			return "yes"
		},
		func(v string) error {
			switch strings.ToLower(v) {
			case "yes", "on":
				m.setUnique(true)
			case "no", "off":
				m.setUnique(false)
			default:
				return errors.New("must be yes or no")
			}
			return nil
		})
}

// setUnique is called before there is a node, too.
func (m *module) setUnique(on bool) {
	m.uniqueOff = !on
	if m.node != nil {
		m.node.SetUnique(on)
	}
}
