package commands

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"jobmesh/module/engine"
	"jobmesh/module/entries"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// Queue settings: the defaults of ADDJOB's options in a queue, or in all queues that a
// pattern matches.

// Limits of settings.
const (
	maxSettings = 10_000
)

// Errors of QCONFIG.
const (
	errNoOption     engine.Refusal = "ERR there is no such setting: UNIQUE, KEY, SCOPE, LIMIT, LOCKTTL, RUNTTL, ONCONFLICT, ONBUSY, QUORUM, REPLICATE, RETRY, TTL, DELAY, MAXLEN, PRIORITY, RATE, CONCURRENCY, EXCLUDE, BACKOFF, MAXNACKS, MAXDELIVERIES, MAXLAPSES, DEAD, DEADTTL, DEADMAX, ONEXPIRE and KEEP are"
	errDelayedOut   engine.Refusal = "ERR DELAY must be less than TTL, or no job of these settings could ever be delivered: set a longer TTL, or none"
	errRate         engine.Refusal = "ERR RATE must be followed by a count, 1 to 1000000, and seconds, 1 to 86400"
	errConcurrency  engine.Refusal = "ERR CONCURRENCY must be between 1 and 65535"
	errExclude      engine.Refusal = "ERR EXCLUDE must be yes or no"
	errManyConfigs  engine.Refusal = "ERR there are 10000 settings already: use patterns"
	errManyPatterns engine.Refusal = "ERR there are 1000 patterns already, of which one with more than ten *, or with a ? somewhere between two of them, counts as ten: use wider ones, or delete some"
	errLongSettings engine.Refusal = "ERR the settings of a name must have 32768 bytes at most"
	errLongPattern  engine.Refusal = "ERR the name must have 1024 bytes at most"
	errRestoreOnly  engine.Refusal = "ERR QCONFIG RESTORE is a special command only processed from AOF"
	errDamaged      engine.Refusal = "ERR the settings are damaged"
)

// settingBits are a set of settings.
type settingBits uint32

// Bits for the options that aren't about uniqueness. parseUnique has the bits below, and bit 30. The bits of [engine.PolicySet] are those from
// policyBits on.
const (
	setReplicate settingBits = 1 << (iota + 8)
	setRetry
	setTTL
	setDelay
	setMaxLen
	setPriority
	setRate
	setExclude
	setDeadMax
	policyBits = iota + 8

	setConcurrency settingBits = 1 << 31
	setLimits                  = setRate | setConcurrency
)

// parseSettings reads options from argument i on. They overwrite what s has already.
func parseSettings(c args, i int, s *settings) error {
	n := c.NArgs()
	for i < n {
		if i+1 == n {
			return errSyntax
		}
		opt, value := c.Arg(i), c.Arg(i+1)
		num := func(bit settingBits, into *int64, lo, hi int64, err error) error {
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
		case is(opt, "DEADMAX"):
			err = num(setDeadMax, &s.deadMax, 0, engine.MaxSeconds, errDeadMax)
		case is(opt, "PRIORITY"):
			var v int64
			err = num(setPriority, &v, -store.MaxPriority, store.MaxPriority, errPriority)
			s.add.Priority = int(v)
		case is(opt, "RATE"):
			if i+2 >= n {
				return errRate
			}
			count, ok := between(value, 1, engine.MaxRate)
			seconds, ok2 := between(c.Arg(i+2), 1, engine.MaxRateSeconds)
			if !ok || !ok2 {
				return errRate
			}
			s.limits.Rate, s.set = engine.Rate{Count: count, Seconds: seconds}, s.set|setRate
			i++
		case is(opt, "CONCURRENCY"):
			err = num(setConcurrency, &s.limits.AtOnce, 1, engine.MaxConcurrency, errConcurrency)
		case is(opt, "EXCLUDE"):
			if s.exclude = same(value, "yes"); !s.exclude && !same(value, "no") {
				return errExclude
			}
			s.set |= setExclude
		default:
			given := s.set & uniqueBits
			took, err := parseUnique(c, i, &s.add.Unique, &given)
			if took == 0 && err == nil {
				took, err = parsePolicy(c, i, &s.policy)
				s.set |= settingBits(s.policy.Set) << policyBits
			}
			if err != nil {
				return err
			}
			if took == 0 {
				return errNoOption
			}
			if is(opt, "KEY") {
				s.add.Unique.Key = bytes.Clone(s.add.Unique.Key)
			}
			s.set |= given
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

// check returns an error if the settings contradict each other.
func (s *settings) check() error {
	a := s.add
	if s.set&setTTL == 0 {
		a.TTL = defaultTTL(&a)
	}
	if a.Delay >= a.TTL {
		return errDelayedOut
	}
	if s.set&setRetry != 0 && a.Retry == 0 && a.Replicate > 1 {
		return errAtMostOnce
	}
	given := s.set & uniqueBits
	if given == 0 || a.Unique.Strategy == 0 && given&gaveUnique == 0 {
		return nil // times and rules for jobs whose ADDJOB has UNIQUE
	}
	return checkUnique(&a, given, true) // an ADDJOB may bring the DELAY
}

// option is one setting's name with its words.
type option struct {
	bit   settingBits
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

// options lists all settings, in the order in which they are shown.
var options = []option{
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
	{gaveLimit, "limit", func(s *settings) []string { return decimal(int64(s.add.Unique.Limit)) }},
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
	{setPriority, "priority", func(s *settings) []string { return decimal(int64(s.add.Priority)) }},
	{setRate, "rate", func(s *settings) []string { return append(decimal(s.limits.Count), decimal(s.limits.Seconds)...) }},
	{setConcurrency, "concurrency", func(s *settings) []string { return decimal(s.limits.AtOnce) }},
	{setDeadMax, "deadmax", func(s *settings) []string { return decimal(s.deadMax) }},
	{setExclude, "exclude", func(s *settings) []string { return either(s.exclude, "yes", "no") }},
	{policyBit(engine.SetBackoff), "backoff", func(s *settings) []string {
		p := &s.policy
		return append(append(decimal(p.Base), decimal(p.Max)...), append([]string{"jitter"}, decimal(p.Jitter)...)...)
	}},
	{policyBit(engine.SetMaxNacks), "maxnacks", func(s *settings) []string { return decimal(s.policy.MaxNacks) }},
	{policyBit(engine.SetMaxDeliveries), "maxdeliveries", func(s *settings) []string { return decimal(s.policy.MaxDeliveries) }},
	{policyBit(engine.SetMaxLapses), "maxlapses", func(s *settings) []string { return decimal(s.policy.MaxLapses) }},
	{policyBit(engine.SetDead), "dead", func(s *settings) []string { return []string{string(s.policy.Dead)} }},
	{policyBit(engine.SetDeadTTL), "deadttl", func(s *settings) []string { return decimal(s.policy.DeadTTL) }},
	{policyBit(engine.SetOnExpire), "onexpire", func(s *settings) []string { return either(s.policy.ExpiredDies, "dead", "drop") }},
	{policyBit(engine.SetKeep), "keep", func(s *settings) []string { return decimal(s.policy.Keep) }},
}

func policyBit(p engine.PolicySet) settingBits { return settingBits(p) << policyBits }

// words returns the settings of some bits, as QCONFIG SET takes them.
func (s *settings) words(bits settingBits) (words []string) {
	for _, o := range options {
		if s.set&bits&o.bit != 0 {
			words = append(append(words, o.name), o.words(s)...)
		}
	}
	return words
}

func optionNamed(arg []byte) (option, bool) {
	for _, o := range options {
		if same(arg, o.name) {
			return o, true
		}
	}
	return option{}, false
}

func (m *module) configSet(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	name := canonical(string(c.Arg(2)))
	if len(name) > entries.MaxName {
		fail(c, errLongPattern)
		return
	}
	s := &settings{name: name}
	if old := m.settings.find(name); old != nil {
		*s = *old
	} else if err := m.settings.room(name); err != nil && !c.FromPeer() { // an older release's log may have more
		fail(c, err)
		return
	}
	err := parseSettings(c, 3, s)
	if err == nil && s.set&setRate != 0 && !c.FromPeer() {
		err = lacking(m.node.LacksRates())
	}
	if err == nil && s.set&setConcurrency != 0 && !c.FromPeer() {
		err = lacking(m.node.LacksSlots())
	}
	if err == nil && s.add.Unique.Limit > 1 && !c.FromPeer() {
		err = lacking(m.node.LacksLimits())
	}
	value := s.value()
	if err == nil && len(value) > entries.MaxValue {
		err = errLongSettings
	}
	if err == nil && !c.FromPeer() {
		err = m.node.EntryFits(m.settingsKind(), len(value))
	}
	if err != nil {
		fail(c, err)
		return
	}
	m.changeSettings(c, name, value)
	c.Simple("OK")
}

// lacking refuses what would mean nothing if one node of the mesh didn't obey it: the node of this ID doesn't know it. "": all nodes do.
func lacking(id string) error {
	if id != "" {
		return engine.Refusal("ERR node " + id + " has a version without this: upgrade it, or JOBMESH CLUSTER FORGET it")
	}
	return nil
}

// changeSettings makes settings count, or deletes them (nil). In the log of an earlier release they have no stamp.
func (m *module) changeSettings(c *rm.Ctx, name string, value []byte) {
	if !c.FromPeer() {
		m.node.ChangeEntry(m.settingsKind(), name, value)
		m.carryOut(c)
		return
	}
	m.forceSettings(m.settingsKind(), name, value)
	m.saveSettings()
	c.Dirty()
}

func (m *module) configDelete(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	s := m.settings.find(string(c.Arg(2)))
	if s == nil {
		c.Int(0)
		return
	}
	m.changeSettings(c, s.name, nil)
	c.Int(1)
}

// configUnset removes single settings.
func (m *module) configUnset(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	old := m.settings.find(string(c.Arg(2)))
	s := &settings{name: string(c.Arg(2))}
	if old != nil {
		*s = *old
	}
	var gone settingBits
	for i := 3; i < c.NArgs(); i++ {
		o, ok := optionNamed(c.Arg(i))
		if !ok {
			fail(c, errNoOption)
			return
		}
		gone |= o.bit
	}
	left := &settings{name: s.name}
	var kept list
	for _, w := range s.words(^gone) {
		kept = append(kept, []byte(w))
	}
	if err := parseSettings(kept, 0, left); err != nil {
		fail(c, err)
		return
	}
	left.unknown = slices.DeleteFunc(slices.Clone(s.unknown), func(u oneSetting) bool {
		o, known := optionNamed(u.words[0])
		return known && o.bit&gone != 0
	})
	if s.set&gone == 0 && len(left.unknown) == len(s.unknown) {
		c.Int(0)
		return
	}
	var value []byte
	if left.set != 0 || len(left.unknown) > 0 {
		value = left.value()
	}
	m.changeSettings(c, s.name, value)
	c.Int(1)
}

// list is arguments that no client sent.
type list [][]byte

func (l list) NArgs() int       { return len(l) }
func (l list) Arg(i int) []byte { return l[i] }

// configGet answers the settings that apply to a queue.
func (m *module) configGet(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	wanted := ^settingBits(0)
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

func putSettings(c *rm.Ctx, s *settings, wanted settingBits) {
	n := 0
	for _, o := range options {
		if s.set&wanted&o.bit != 0 {
			n++
		}
	}
	c.Map(n)
	for _, o := range options {
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
	all := m.settings.sorted
	c.Map(len(all))
	for _, s := range all {
		c.Text(s.name)
		putSettings(c, s, ^settingBits(0))
	}
}

// configRestore is QCONFIG RESTORE, from a log: what all nodes are to know alike, or changes of it.
func (m *module) configRestore(c *rm.Ctx) {
	if !c.FromPeer() {
		fail(c, errRestoreOnly)
		return
	}
	if err := m.loadSettings(c.Arg(2)); err != nil {
		fail(c, err)
		return
	}
	c.Simple("OK")
	c.Dirty()
}

// relogSettings logs all entries again.
func (m *module) relogSettings(c *rm.Ctx) {
	if text := m.settingsText(); text != nil {
		args := c.Replicate(m.effect.qconfig, 2)
		args.Text("RESTORE")
		copy(args.Buffer(len(text)), text)
	}
}

// entryChanged carries out and logs an entry that all nodes are to know alike.
func (m *module) entryChanged(c *rm.Ctx, e *engine.Effect, listened bool) {
	if lost := e.Lost; lost != nil {
		m.conflicts++
		m.server.Log(rm.Notice, "two nodes changed the same without knowing of each other, and the later change counts: the %s, as node %016x had it, doesn't", entryText(lost), uint64(lost.Stamp.Node))
	}
	if e.Entry == nil {
		return
	}
	m.settings.learn(e.Entry, m.settingsKind())
	if e.Entry.Kind == m.settingsKind() {
		m.node.PoliciesChanged()
	}
	if listened {
		args := c.Replicate(m.effect.qconfig, 2)
		args.Text("RESTORE")
		args.Text(string(e.Entry.Append([]byte{settingsFormat})))
	}
}

// settingsState returns the lines of CLUSTER INFO about what all nodes are to know alike.
func (m *module) settingsState() string {
	inStep := "yes"
	if !m.node.EntriesInStep() {
		inStep = "no"
	}
	all, zones := m.node.Entries(), ""
	counts := m.node.Zones()
	for _, zone := range slices.Sorted(maps.Keys(counts)) {
		zones += fmt.Sprintf(",%s=%d", zone, counts[zone])
	}
	return fmt.Sprintf("cluster_zones:%s\r\nsettings_entries:%d\r\nsettings_digest:%016x\r\nsettings_in_step:%s\r\n", strings.TrimPrefix(zones, ","), all.Len(), all.Sum(), inStep)
}

// entryText is an entry in words, for the server's log.
func entryText(e *entries.Entry) string {
	switch {
	case e.Kind == engine.EntryZone:
		return fmt.Sprintf("zone of node %s: %s", e.Name, e.Value)
	case e.Kind == engine.EntryPause:
		return fmt.Sprintf("pause of %q", e.Name)
	case e.Kind == engine.EntryCron:
		return fmt.Sprintf("recurring job %q", e.Name)
	case e.Kind == engine.EntryFlush:
		return fmt.Sprintf("flush of %q", e.Name)
	case e.Kind != engine.EntrySettings:
		return fmt.Sprintf("entry %d %q", e.Kind, e.Name)
	case e.Deleted:
		return fmt.Sprintf("end of the settings of %q", e.Name)
	}
	return fmt.Sprintf("settings of %q: %s", e.Name, strings.Join(settingsOf(e.Name, e.Value).words(^settingBits(0)), " "))
}

// setOwnSettings chooses whether this node's settings are its own, or those of the mesh. It may be called before m.node
// exists.
func (m *module) setOwnSettings(own bool) {
	m.ownSettings = own
	m.settingsAnew()
}

// uniqueConfig turns uniqueness on or off. It is no BoolConfig, which would refuse "off".
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

// setUnique may be called before m.node exists.
func (m *module) setUnique(on bool) {
	m.uniqueOff = !on
	if m.node != nil {
		m.node.SetUnique(on)
	}
}
