package commands

import (
	"encoding/hex"
	"strings"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// The commands that list and clear locks: LOCK.SHOW, LOCK.SCAN, LOCK.CLEAR.

// lockFilter is what the options TYPE and QUEUE select.
type lockFilter struct {
	space   store.Space
	queue   []byte
	inQueue bool
	slot    int
	inSlot  bool // slot was said
}

// slotName is the name of the slot of a lock that the filter selects: slot 0 if none was said.
func (f *lockFilter) slotName(name []byte) []byte { return store.AppendSlotName(nil, f.slot, name) }

// option reads an option of the filter at argument i. used is how many arguments it has, 0
// if it is another option.
func (f *lockFilter) option(c args, i int) (used int, err error) {
	opt := c.Arg(i)
	switch {
	case is(opt, "TYPE") && i+1 < c.NArgs():
		switch v := c.Arg(i + 1); {
		case is(v, "BARE"):
			f.space = store.LockBare
		case is(v, "WAITING"):
			f.space = store.LockWait
		case is(v, "RUNNING"):
			f.space = store.LockRun
		default:
			return 0, errLockType
		}
		return 2, nil
	case is(opt, "QUEUE") && i+1 < c.NArgs():
		f.queue, f.inQueue = c.Arg(i+1), true
		return 2, nil
	case is(opt, "SLOT") && i+1 < c.NArgs():
		v, ok := between(c.Arg(i+1), 0, store.MaxSlots-1)
		if !ok {
			return 0, errAnySlot
		}
		f.slot, f.inSlot = int(v), true
		return 2, nil
	}
	return 0, nil
}

func (f *lockFilter) check() error {
	if f.inQueue && f.space == store.LockBare {
		return errLockQueue
	}
	return nil
}

// names returns the full names that a lock called key may have. A long key is stored as its
// hash, and may be given as that.
func (f *lockFilter) names(key []byte) [][]byte {
	if f.space == store.LockBare {
		return [][]byte{f.slotName(store.AppendBareName(nil, key))}
	}
	list := [][]byte{f.slotName(store.AppendLockName(nil, f.space, f.scope(), key))}
	if text, ok := strings.CutPrefix(string(key), hashedPrefix); ok {
		if sum, err := hex.DecodeString(text); err == nil && len(sum) == 32 {
			list = append(list, f.slotName(append(append(f.prefix(), 'K'), sum...)))
		}
	}
	return list
}

func (f *lockFilter) scope() []byte {
	if f.inQueue && f.queue == nil {
		return []byte{}
	}
	return f.queue
}

// prefix returns the beginning of the full names of all locks of a space and scope.
func (f *lockFilter) prefix() []byte {
	name := store.AppendLockName(nil, f.space, f.scope(), nil)
	return name[:len(name)-1]
}

func (m *module) lockShow(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	f := lockFilter{space: store.LockBare}
	for i := 2; i < c.NArgs(); {
		used, err := f.option(c, i)
		if err == nil && used == 0 {
			err = errSyntax
		}
		if err != nil {
			fail(c, err)
			return
		}
		i += used
	}
	if err := f.check(); err != nil {
		fail(c, err)
		return
	}
	if f.inQueue && !c.May(f.queue, rm.UseRead) {
		fail(c, errNoKey)
		return
	}
	for _, name := range f.names(c.Arg(1)) {
		if l := m.node.Locks().Live(name); l != nil {
			if l.Space() == store.LockBare || m.seesLock(newSight(c), l) {
				m.putLock(c, l)
			} else {
				fail(c, errNoKey)
			}
			return
		}
	}
	c.Null()
}

func (m *module) putLock(c *rm.Ctx, l *store.Lock) {
	space, scope, key := lockTitle(l)
	bare := space == store.LockBare
	fields := 8
	if scope != nil {
		fields++
	}
	slot, _ := store.SlotName(l.Name())
	if slot > 0 {
		fields++
	}
	c.Map(fields)
	c.Text("name")
	c.Text(string(key))
	c.Text("type")
	c.Text(spaceNames[space])
	if scope != nil {
		c.Text("queue")
		c.Text(string(scope))
	}
	if bare {
		c.Text("owner")
		c.Text(string(l.Owner()))
	} else {
		c.Text("job")
		l.Job.Put((*[store.IDLen]byte)(c.BulkBuffer(store.IDLen)))
	}
	for _, f := range [...]struct {
		name  string
		value int64
	}{
		{"token", lock.ShownToken(l.Token)},
		{"ttl", m.node.Locks().Left(l)},
		{"lease", l.Lease},
		{"since", lock.Since(l)},
		{"waiting", int64(m.node.Locks().Waiters(l.Name()))},
	} {
		c.Text(f.name)
		c.Int(f.value)
	}
	if slot > 0 {
		c.Text("slot")
		c.Int(int64(slot))
	}
}

// lockTitle returns a lock's name as clients see it: for a long name, its hash.
func lockTitle(l *store.Lock) (space store.Space, scope, key []byte) {
	space, scope, key, scopeHashed, hashed := store.LockName(l.Name())
	if scopeHashed {
		scope = []byte(hashedPrefix + hex.EncodeToString(scope))
	}
	if hashed {
		key = []byte(hashedPrefix + hex.EncodeToString(key))
	}
	return space, scope, key
}

// lockScan is a parsed LOCK.SCAN.
type lockScan struct {
	lockFilter
	cursor uint64
	count  int64
	prefix []byte
	isPre  bool
	match  *glob // nil: all
}

const (
	maxMatch  = 4096    // bytes of MATCH; a lock's name may have as many
	scanSteps = 500_000 // steps of matching after which a page ends: some ms
)

func parseLockScan(c args) (s lockScan, err error) {
	s.space, s.count = store.LockBare, scanCount
	var ok bool
	if s.cursor, ok = cursor(c.Arg(1)); !ok {
		return s, errLockCursor
	}
	for i := 2; i < c.NArgs(); i += 2 {
		used, err := s.option(c, i)
		switch {
		case err != nil:
			return s, err
		case used > 0:
		case i+1 == c.NArgs():
			return s, errSyntax
		case is(c.Arg(i), "MATCH"):
			if len(c.Arg(i+1)) > maxMatch {
				return s, errLongMatch
			}
			s.match = newGlob(c.Arg(i+1), scanByte)
		case is(c.Arg(i), "PREFIX"):
			s.prefix, s.isPre = c.Arg(i+1), true
		case is(c.Arg(i), "COUNT"):
			if s.count, ok = between(c.Arg(i+1), 1, 1<<62); !ok {
				return s, errCount
			}
		default:
			return s, errSyntax
		}
	}
	return s, s.check()
}

func (s *lockScan) wants(l *store.Lock) bool {
	space, scope, key := lockTitle(l)
	slot, _ := store.SlotName(l.Name())
	return space == s.space && (!s.inSlot || slot == s.slot) && (!s.inQueue || scope != nil && string(scope) == string(s.queue)) &&
		(!s.isPre || strings.HasPrefix(string(key), string(s.prefix))) && (s.match == nil || s.match.match(key))
}

// tired says whether matching has taken as long as one command may take.
func (s *lockScan) tired() bool { return s.match != nil && s.match.steps >= scanSteps }

func (m *module) lockScan(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	s, err := parseLockScan(c)
	if err != nil {
		fail(c, err)
		return
	}
	m.locks = m.locks[:0]
	n, sight := 0, newSight(c)
	for seen, met := int64(0), int64(0); seen < s.count && !s.tired(); seen++ {
		s.cursor = m.node.Locks().Scan(s.cursor, &m.locks)
		met += int64(len(m.locks) - n)
		seen = max(seen, met)
		for _, l := range m.locks[n:] {
			if s.wants(l) && m.seesLock(sight, l) {
				m.locks[n] = l
				n++
			}
		}
		m.locks = m.locks[:n]
		if s.cursor == 0 {
			break
		}
	}
	putCursor(c, s.cursor)
	c.Array(n)
	for _, l := range m.locks[:n] {
		_, scope, key := lockTitle(l)
		if s.space == store.LockBare {
			c.Text(string(key))
			continue
		}
		c.Array(2)
		if scope == nil {
			c.Null()
		} else {
			c.Text(string(scope))
		}
		c.Text(string(key))
	}
}

// lockClear is LOCK.CLEAR [NAME] name | PREFIX prefix | ALL, with TYPE and QUEUE.
func (m *module) lockClear(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	names, prefix, f, err := parseClear(c)
	if err != nil {
		fail(c, err)
		return
	}
	if !m.mayClear(c, f) {
		fail(c, errNoKey)
		return
	}
	if !m.node.Mesh().Alone() && !c.CanBlock() {
		fail(c, errLockBlock)
		return
	}
	var cleared int64
	for _, name := range names {
		var n int64
		var pending *lock.Clearing
		if prefix || f.inSlot {
			n, pending, err = m.node.Locks().Clear(name, prefix, c.CanBlock())
		} else {
			n, err = m.node.Locks().ClearSlots(name)
		}
		if err != nil {
			fail(c, err)
			return
		}
		if pending != nil { // then names has one element
			m.awaitClearing(c, pending)
			return
		}
		cleared += n
	}
	c.Int(cleared)
	m.carryOut(c)
}

// awaitClearing blocks the client until its many locks are freed.
func (m *module) awaitClearing(c *rm.Ctx, pending *lock.Clearing) {
	client, err := c.Block(0, func(c *rm.Ctx, gone bool) {
		pending.Client = nil
		if !gone { // CLIENT UNBLOCK
			fail(c, errClearing)
		}
	})
	if err != nil {
		c.Error("ERR " + err.Error())
	} else {
		pending.Client = client
	}
	m.carryOut(c)
}

func (m *module) cleared(e *engine.Effect) {
	count, err := int64(e.Nodes), e.Err
	e.Client.(*rm.Client).Answer(func(c *rm.Ctx) {
		if err != nil {
			fail(c, err)
		} else {
			c.Int(count)
		}
	}, nil)
}

// mayClear says whether the client's user may clear the locks that a filter selects. Bare
// locks: yes; a queue's locks: if the user may write to the queue. Locks of SCOPE mesh can
// be any queue's, so they need the right to all keys.
func (m *module) mayClear(c *rm.Ctx, f lockFilter) bool {
	switch {
	case f.space == store.LockBare:
		return true
	case f.inQueue:
		return c.May(f.queue, rm.UseWrite)
	}
	return c.MayAll()
}

func parseClear(c args) (names [][]byte, prefix bool, f lockFilter, err error) {
	f.space = store.LockBare
	first, i := c.Arg(1), 2
	all := is(first, "ALL")
	prefix = is(first, "PREFIX")
	key := first
	if prefix || is(first, "NAME") && c.NArgs()%2 == 1 {
		if c.NArgs() < 3 {
			return nil, false, f, errSyntax
		}
		key, i = c.Arg(2), 3
	}
	for i < c.NArgs() {
		used, err := f.option(c, i)
		switch {
		case err != nil:
			return nil, false, f, err
		case used == 0:
			return nil, false, f, errSyntax
		}
		i += used
	}
	if err := f.check(); err != nil {
		return nil, false, f, err
	}
	if len(key) > maxLockKey {
		return nil, false, f, errLockName
	}
	if f.inSlot && (all || prefix) {
		return nil, false, f, errSlotOfOne
	}
	switch {
	case all && f.space == store.LockBare:
		return [][]byte{{byte(f.space)}}, true, f, nil
	case all:
		return [][]byte{f.prefix()}, true, f, nil
	case prefix && f.space == store.LockBare:
		return f.names(key), true, f, nil
	case prefix:
		return [][]byte{append(append(f.prefix(), 'k'), key...)}, true, f, nil
	}
	return f.names(key), false, f, nil
}
