package commands

import (
	"bytes"
	"fmt"

	"jobmesh/module/engine"
	"jobmesh/module/schedule"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// CRON: recurring jobs.

// Errors of CRON.
const (
	errCronName    engine.Refusal = "ERR the name of a recurring job must have 1 to 255 bytes"
	errEvery       engine.Refusal = "ERR EVERY must be a number of seconds > 0, at most 2147483647"
	errOffset      engine.Refusal = "ERR OFFSET must be a number of seconds, less than EVERY"
	errMissed      engine.Refusal = "ERR MISSED must be skip, last or all"
	errBound       engine.Refusal = "ERR FROM and UNTIL must be unix times in seconds, and FROM not after UNTIL"
	errCronOption  engine.Refusal = "ERR a recurring job can't have DEFERRED, BLOCKEDBY, AFTER, AT or ASYNC: its copies are placed as with ASYNC"
	errCronNamed   engine.Refusal = "ERR a recurring job can't have NAME: each slot's job is another one, which SHOW tells by its cron and slot"
	errCronOptions engine.Refusal = "ERR a recurring job has at most 100 words of options"
	errSlots       engine.Refusal = "ERR COUNT must be between 1 and 1000"
	errNoCron      engine.Refusal = "NOCRON there is no entry of that name"
	errCronScope   engine.Refusal = "NOPERM this user's key patterns (ACL) exclude some queues, and with SCOPE mesh a recurring job may replace, or be, a job of any: take SCOPE queue, or ONCONFLICT drop"
)

const (
	maxSlots       = 1000
	maxCronOptions = 100
)

var missedNames = [...]string{engine.MissedLast: "last", engine.MissedSkip: "skip", engine.MissedAll: "all"}

// parseCron reads CRON SET: the name, when the slots are, and the job with its options.
func parseCron(c args, d *defaults) (name string, s engine.Cron, err error) {
	if name = string(c.Arg(2)); len(name) == 0 || len(name) > engine.MaxCronName {
		return name, s, errCronName
	}
	i, n := 3, c.NArgs()
	for ; i+1 < n && !is(c.Arg(i), "JOB"); i += 2 {
		opt, value, ok := c.Arg(i), c.Arg(i+1), true
		switch {
		case is(opt, "EVERY") && s.Every == 0 && s.Line == "":
			s.Every, ok = between(value, 1, schedule.MaxEvery)
			err = errEvery
		case is(opt, "OFFSET") && s.Every > 0:
			s.Offset, ok = between(value, 0, s.Every-1)
			err = errOffset
		case is(opt, "LINE") && s.Every == 0 && s.Line == "":
			if s.Line = string(value); s.Line == "" {
				s.Line = " " // its error tells what a line has
			}
		case is(opt, "ZONE") && s.Line != "":
			s.Zone = string(value)
		case is(opt, "MISSED"):
			var missed uint8
			missed, ok = named(missedNames[:], value)
			s.Missed, err = engine.Missed(missed), errMissed
		case is(opt, "FROM"):
			s.From, ok = between(value, 0, engine.MaxSlot)
			err = errBound
		case is(opt, "UNTIL"):
			s.Until, ok = between(value, 1, engine.MaxSlot)
			err = errBound
		default:
			return name, s, errSyntax
		}
		if !ok {
			return name, s, err
		}
	}
	switch {
	case i+2 >= n || s.Every == 0 && s.Line == "":
		return name, s, errSyntax
	case s.Until > 0 && s.From > s.Until:
		return name, s, errBound
	case n-i-3 > maxCronOptions:
		return name, s, errCronOptions
	}
	if s.Line != "" {
		_, err := schedule.Line(s.Line, s.Zone)
		if err == nil {
			err = schedule.CheckSteps(s.Line)
		}
		if err != nil {
			return name, s, engine.Refusal("ERR " + err.Error())
		}
	}
	s.Queue, s.Body = bytes.Clone(c.Arg(i+1)), bytes.Clone(c.Arg(i+2))
	for i += 3; i < n; i++ {
		s.Options = append(s.Options, bytes.Clone(c.Arg(i)))
	}
	return name, s, parseCronJob(&s, d)
}

// parseCronJob reads the options of a recurring job's jobs, to see whether they are right.
func parseCronJob(s *engine.Cron, d *defaults) error {
	var a engine.Add
	of := *d
	d, of.noAt = &of, true
	err := parseAdd(wordsOf(s), &a, d)
	if err == errNotUnique {
		// QUORUM alone says which nodes may make the slots.
		for i := 0; i+1 < len(s.Options); i++ {
			if !is(s.Options[i], "QUORUM") || !same(s.Options[i+1], "any") && !same(s.Options[i+1], "majority") {
				continue
			}
			without := *s
			without.Options = append(append([][]byte{}, s.Options[:i]...), s.Options[i+2:]...)
			without.Any = same(s.Options[i+1], "any")
			if again := parseAdd(wordsOf(&without), &a, d); again == nil {
				*s, err = without, nil
			}
			break
		}
	}
	if err != nil {
		return err
	}
	switch {
	case a.Async || a.Family():
		return errCronOption
	case a.Name != nil:
		return errCronNamed
	}
	s.Any, s.Once = s.Any || a.Unique.Any, a.Retry == 0
	return nil
}

// wordsOf are the arguments of the ADDJOB of a recurring job.
func wordsOf(s *engine.Cron) list {
	return append(list{[]byte("ADDJOB"), s.Queue, s.Body, []byte("0")}, s.Options...)
}

// addCron makes the ADDJOB of a recurring job, with the settings as they are now.
func (m *module) addCron(s *engine.Cron, a *engine.Add) error {
	return parseAdd(wordsOf(s), a, m.defaults(s.Queue))
}

func (m *module) cronSet(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	var queue []byte
	for i := 3; i+1 < c.NArgs(); i += 2 {
		if is(c.Arg(i), "JOB") {
			queue = c.Arg(i + 1)
			break
		}
	}
	name, s, err := parseCron(c, m.defaults(queue))
	var next int64
	if err == nil {
		err = m.mayCron(c, &s)
	}
	if err == nil {
		next, err = m.node.SetCron(name, s)
	}
	if err != nil {
		fail(c, err)
		return
	}
	c.Int(next)
	m.carryOut(c)
}

// mayCron refuses a recurring job that the user has no right to, or that a node of the mesh doesn't know.
func (m *module) mayCron(c *rm.Ctx, s *engine.Cron) error {
	if m.node.Passive() {
		return engine.ErrReplica
	}
	if err := lacking(m.node.LacksCrons()); err != nil {
		return err
	}
	var a engine.Add
	if err := m.addCron(s, &a); err != nil {
		return err
	}
	if a.Unique.Limit > 1 {
		if err := lacking(m.node.LacksLimits()); err != nil {
			return err
		}
	}
	switch {
	case a.Policy != nil && len(a.Policy.Dead) > 0 && !c.May(a.Policy.Dead, rm.UseWrite):
		return errNoKey
	case a.Unique.Mesh && a.Unique.Conflict != store.ConflictDrop && !c.MayAll():
		return errCronScope
	}
	return nil
}

// eachCron applies an operation to each of the names, and answers for how many it returned true.
func (m *module) eachCron(c *rm.Ctx, do func(name string) bool) {
	if !m.enter(c) {
		return
	}
	if m.node.Passive() {
		fail(c, engine.ErrReplica)
		return
	}
	var done int64
	for i := 2; i < c.NArgs(); i++ {
		if do(string(c.Arg(i))) {
			done++
		}
	}
	c.Int(done)
	m.carryOut(c)
}

func (m *module) cronDelete(c *rm.Ctx) { m.eachCron(c, m.node.DeleteCron) }

func (m *module) cronPause(c *rm.Ctx) {
	m.eachCron(c, func(name string) bool { return m.node.PauseCron(name, true) })
}

func (m *module) cronResume(c *rm.Ctx) {
	m.eachCron(c, func(name string) bool { return m.node.PauseCron(name, false) })
}

// unixOrNull answers a time, or null if there is none.
func unixOrNull(c *rm.Ctx, at int64) {
	if at > 0 {
		c.Int(at)
	} else {
		c.Null()
	}
}

func (m *module) cronGet(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	s, ok := m.node.CronNamed(string(c.Arg(2)))
	if !ok {
		c.Null()
		return
	}
	c.Map(16)
	c.Text("name")
	c.Bulk(c.Arg(2))
	if s.Line == "" {
		c.Text("every")
		c.Int(s.Every)
		c.Text("offset")
		c.Int(s.Offset)
	} else {
		c.Text("line")
		c.Text(s.Line)
		c.Text("zone")
		c.Text(zoneOf(&s.Cron))
	}
	c.Text("missed")
	c.Text(missedNames[s.Missed])
	c.Text("from")
	unixOrNull(c, s.From)
	c.Text("until")
	unixOrNull(c, s.Until)
	c.Text("paused")
	c.Text(yesNo(s.Paused))
	c.Text("queue")
	c.Text(string(s.Queue))
	c.Text("body")
	c.Text(string(s.Body))
	options := s.Options
	if s.Any && !hasQuorum(options) {
		options = append(append([][]byte{}, options...), []byte("QUORUM"), []byte("any"))
	}
	c.Text("options")
	c.Array(len(options))
	for _, o := range options {
		c.Text(string(o))
	}
	c.Text("next")
	unixOrNull(c, s.Next)
	c.Text("last")
	unixOrNull(c, s.Last)
	c.Text("last-id")
	if s.ID == (store.ID{}) {
		c.Null()
	} else {
		c.Text(s.ID.String())
	}
	c.Text("last-outcome")
	c.Text(s.Outcome.String())
	c.Text("made")
	c.Int(s.Made)
	c.Text("missed-slots")
	c.Int(s.LeftOut)
}

func hasQuorum(options [][]byte) bool {
	for _, o := range options {
		if is(o, "QUORUM") {
			return true
		}
	}
	return false
}

func zoneOf(s *engine.Cron) string {
	if s.Zone == "" {
		return "UTC"
	}
	return s.Zone
}

// whenOf is when the slots are, in words.
func whenOf(s *engine.Cron) string {
	switch {
	case s.Line != "":
		return s.Line + " " + zoneOf(s)
	case s.Offset > 0:
		return fmt.Sprintf("every %d offset %d", s.Every, s.Offset)
	}
	return fmt.Sprintf("every %d", s.Every)
}

func (m *module) cronList(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	var match *glob
	switch {
	case c.NArgs() == 4 && is(c.Arg(2), "MATCH"):
		match = newGlob(c.Arg(3), scanByte)
	case c.NArgs() != 2:
		fail(c, errSyntax)
		return
	}
	type line struct {
		name string
		engine.CronState
	}
	var all []line
	for e := range m.node.Entries().AllOf(engine.EntryCron) {
		if match != nil && !match.match([]byte(e.Name)) {
			continue
		}
		if s, ok := m.node.CronNamed(e.Name); ok {
			all = append(all, line{e.Name, s})
		}
	}
	c.Array(len(all))
	for i := range all {
		c.Array(5)
		c.Text(all[i].name)
		c.Text(string(all[i].Queue))
		c.Text(whenOf(&all[i].Cron))
		unixOrNull(c, all[i].Next)
		unixOrNull(c, all[i].Last)
	}
}

func (m *module) cronNext(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	count := int64(1)
	switch {
	case c.NArgs() == 5 && is(c.Arg(3), "COUNT"):
		var ok bool
		if count, ok = between(c.Arg(4), 1, maxSlots); !ok {
			fail(c, errSlots)
			return
		}
	case c.NArgs() != 3:
		fail(c, errSyntax)
		return
	}
	slots, ok := m.node.CronSlots(string(c.Arg(2)), int(count))
	if !ok {
		fail(c, errNoCron)
		return
	}
	c.Array(len(slots))
	for _, slot := range slots {
		c.Int(slot)
	}
}

// cronRun adds a recurring job's job, which is that of no slot.
func (m *module) cronRun(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	name := string(c.Arg(2))
	s, ok := m.node.CronNamed(name)
	if !ok {
		fail(c, errNoCron)
		return
	}
	if !c.May(s.Queue, rm.UseWrite) {
		fail(c, errNoKey)
		return
	}
	m.watchMemory(len(s.Body))
	a := &m.add
	if err := m.addCron(&s.Cron, a); err != nil {
		fail(c, err)
		return
	}
	a.Slot, a.Async = &engine.Slot{Name: name}, true
	m.addParsed(c, a)
}
