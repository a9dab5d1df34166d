package commands

import (
	"slices"
	"strings"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// The server checks a command's keys against the key patterns of the client's user. This
// file does the same for queues that a command reaches in another way: by a job's ID, by a
// lock, by a scan. COMMANDS.md lists what can't be limited.

const errNoKey engine.Refusal = "NOPERM this user has no permissions to access the queue of a job or lock that the command is about: its key patterns (ACL) exclude it"

// limits is what is known about the users' key patterns. A check of one user costs half as
// much as the rest of ACKJOB, so commands that take IDs make it only if there are limited
// users. Once a second the module finds out whether there are any, since no event reports
// it.
type limits struct {
	none bool  // every user may use all keys
	many bool  // there were more than usersRead: looking at all would take too long
	read int64 // when it was read, by the node's clock
}

// usersRead is how many users are looked at, at most: for each one the server needs 50 µs.
const usersRead = 50

// limitsKept is how long limits count once they were found, without another look, ms.
const limitsKept = 60_000

// readUsers finds out whether there are limited users. If the server doesn't tell, it
// assumes that there are.
func (m *module) readUsers() {
	l := &m.limits
	if l.many {
		return
	}
	if users, err := m.server.CallStrings("ACL", "USERS"); err != nil || len(users) > usersRead {
		l.none, l.many = false, err == nil
		return
	}
	if now := m.node.Now(); l.none || l.read == 0 || now-l.read >= limitsKept {
		users, err := m.server.CallStrings("ACL", "LIST")
		l.none, l.read = err == nil && !slices.ContainsFunc(users, limited), now
	}
}

// limited says whether a line of ACL LIST describes a user who may not use all keys. A user
// who is off counts: its clients stay logged in. Keys in parentheses don't count: they apply
// to some commands only.
func limited(line string) bool {
	rules, _, _ := strings.Cut(line, "(")
	return !slices.Contains(strings.Fields(rules), "~*")
}

// mayUseJobs refuses IDs of jobs in queues that the client's user may not use. It accepts
// IDs of jobs that this node doesn't have.
func (m *module) mayUseJobs(c *rm.Ctx, use rm.KeyUse, ids ...store.ID) bool {
	return m.limits.none || m.mayUseEach(c, use, ids)
}

// mayUseEach is mayUseJobs for the case that some user is limited.
func (m *module) mayUseEach(c *rm.Ctx, use rm.KeyUse, ids []store.ID) bool {
	var last *store.Queue
	for i := range ids {
		j := m.node.Job(&ids[i])
		if j == nil || j.Queue == last || m.node.Nameless(j) {
			continue
		}
		if last = j.Queue; !c.May(last.NameBytes(), use) {
			fail(c, errNoKey)
			return false
		}
	}
	return true
}

// mayWaitFor refuses an ADDJOB that waits for jobs which its user may not see.
func (m *module) mayWaitFor(c *rm.Ctx, a *engine.Add) bool {
	return (a.BlockedBy == nil || m.mayUseJobs(c, rm.UseRead, *a.BlockedBy)) && m.mayUseJobs(c, rm.UseRead, a.After...)
}

// sight is what a client's user may see.
type sight struct {
	user rm.User
	all  bool
	last *store.Queue
	sees bool // whether the user may see last
}

func newSight(c *rm.Ctx) *sight {
	if c.MayAll() {
		return &sight{all: true}
	}
	return &sight{user: c.User()}
}

func (s *sight) queue(q *store.Queue) bool {
	if s.all {
		return true
	}
	if q != s.last {
		s.last, s.sees = q, s.user.May(q.NameBytes(), rm.UseRead)
	}
	return s.sees
}

// name is queue for a queue that may be another node's.
func (s *sight) name(queue []byte) bool { return s.all || s.user.May(queue, rm.UseRead) }

// seesLock says whether the user may see a lock: a bare lock, or a lock of a queue that the
// user may see. A lock of SCOPE mesh belongs to its job's queue.
func (m *module) seesLock(s *sight, l *store.Lock) bool {
	if s.all || l.Space() == store.LockBare {
		return true
	}
	if j := m.node.Job(&l.Job); j != nil && !m.node.Nameless(j) {
		return s.queue(j.Queue)
	}
	_, scope, _, hashed, _ := store.LockName(l.Name())
	return scope != nil && !hashed && s.user.May(scope, rm.UseRead)
}

// hide limits an ADDJOB of SCOPE mesh that meets another job: if the user may not see that
// job, the ADDJOB neither tells anything of it nor changes it.
func hide(c *rm.Ctx, a *engine.Add) {
	if c.MayAll() {
		return
	}
	user, use := c.User(), rm.UseRead
	if a.Unique.Conflict == store.ConflictReplace || a.Unique.Conflict == store.ConflictDebounce {
		use |= rm.UseWrite
	}
	a.Sees = func(queue []byte) bool { return queue != nil && user.May(queue, use) }
}
