package chaos

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"jobmesh/tests/harness"
)

// kind is one kind of job, with what ADDJOB is told.
type kind struct {
	name    string
	weight  int // how often it is drawn; 0: it comes with another
	options string
	copies  int           // REPLICATE: how many nodes hold it when its ID is answered
	once    bool          // RETRY 0
	delay   time.Duration // DELAY
	ttl     time.Duration // TTL, where it may expire
	size    int           // of the body, at least

	// These are for unique jobs.
	keys  int           // how many there are
	queue bool          // SCOPE queue: the key is the queue's
	alone time.Duration // for so long from its delivery no other job with its key is processed
	waits string        // until when another with its key is refused: done, delivered, or window

	family func(*session, *kind) bool // adds such jobs
}

const (
	two    = "REPLICATE 2 RETRY 2 "
	retry  = 2 * time.Second
	window = 2 * time.Second
)

var kinds []*kind

func init() {
	kinds = []*kind{
		{name: "one", weight: 40, options: "REPLICATE 1 RETRY 2", copies: 1},
		{name: "two", weight: 60, options: two, copies: 2},
		{name: "three", weight: 60, options: "REPLICATE 3 RETRY 2", copies: 3},
		{name: "async", weight: 20, options: "REPLICATE 3 ASYNC RETRY 2", copies: 1},
		{name: "delayed", weight: 20, options: two + "DELAY 1", copies: 2, delay: time.Second},
		{name: "short", weight: 10, options: "REPLICATE 2 RETRY 1 TTL 4", copies: 2, ttl: 4 * time.Second},
		{name: "once", weight: 40, options: "REPLICATE 1 RETRY 0", copies: 1, once: true},
		{name: "late", weight: 10, options: "REPLICATE 1 RETRY 0 DELAY 1", copies: 1, once: true, delay: time.Second},
		{name: "large", weight: 1, options: "REPLICATE 1 RETRY 0", copies: 1, once: true, size: 300_000},
		{name: "huge", weight: 1, options: two, copies: 2, size: 1_200_000},

		{name: "run", weight: 25, options: two + "UNIQUE during-processing SCOPE mesh", copies: 2, keys: 5, alone: retry},
		{name: "runone", weight: 10, options: "REPLICATE 1 RETRY 2 UNIQUE during-processing SCOPE queue", copies: 1, keys: 3, queue: true, alone: retry},
		{name: "runonce", weight: 10, options: "REPLICATE 1 RETRY 0 UNIQUE during-processing RUNTTL 2", copies: 1, once: true, keys: 3, queue: true, alone: retry},
		{name: "until", weight: 25, options: two + "UNIQUE until-processed SCOPE mesh", copies: 2, keys: 40, waits: "done"},
		{name: "before", weight: 15, options: two + "UNIQUE before-processing SCOPE queue", copies: 2, keys: 40, queue: true, waits: "delivered"},
		{name: "both", weight: 15, options: two + "UNIQUE before-and-during-processing SCOPE mesh", copies: 2, keys: 20, alone: retry, waits: "delivered"},
		{name: "window", weight: 10, options: "UNIQUE window TTL 2 SCOPE mesh " + two, copies: 2, keys: 40, waits: "window"},

		{name: "deferred", weight: 5, options: two + "DEFERRED", copies: 2, family: (*session).addDeferred},
		{name: "blocked", options: "RETRY 2", copies: 2},
		{name: "after", weight: 10, options: "RETRY 2", copies: 2, family: (*session).addAfter},
	}
}

func named(name string) *kind {
	for _, k := range kinds {
		if k.name == name {
			return k
		}
	}
	panic(name)
}

// patience is how long a client waits for an answer. addTimeout is how long ADDJOB may wait
// for its copies.
const (
	patience   = 5 * time.Second
	addTimeout = 2 * time.Second
	backlog    = 300 // jobs that are promised and not delivered yet, at most
)

// crowd is the clients of a round.
type crowd struct {
	m    *mesh
	b    *books
	adds atomic.Bool // producers add
	over atomic.Bool
	wait sync.WaitGroup
}

func startCrowd(m *mesh, b *books) *crowd {
	c := &crowd{m: m, b: b}
	c.adds.Store(true)
	for range 6 {
		c.run((*session).produce)
	}
	for range 6 {
		c.run((*session).consume)
	}
	for range 4 {
		c.run((*session).lock)
	}
	return c
}

func (c *crowd) stop() {
	c.adds.Store(false)
	c.over.Store(true)
	c.wait.Wait()
}

// anyNode draws a node, and returns its master; nil while that is in doubt.
func (m *mesh) anyNode() *server { return m.nodes[rand.IntN(len(m.nodes))].serves.Load() }

// session is a connection to a node.
type session struct {
	*harness.Conn
	*crowd
	node string
}

// run starts a client. It calls work on a connection to a random node, again and again, until
// work returns that the connection is of no more use. Then it goes to another random node.
func (c *crowd) run(work func(*session) bool) {
	c.wait.Go(func() {
		for !c.over.Load() {
			s := c.m.anyNode()
			if s == nil {
				time.Sleep(10 * time.Millisecond)
				continue
			}
			conn, err := harness.Dial(s.addr, patience)
			if err != nil {
				time.Sleep(10 * time.Millisecond)
				continue
			}
			for n := 0; n < 30 && !c.over.Load() && work(&session{conn, c, s.name}); n++ {
			}
			conn.Close()
		}
	})
}

// expected are errors that faults explain.
var expected = []string{"NOREPL", "LOADING", "NOQUORUM", "READONLY", "LEAVING", "PAUSED", "UNBLOCKED", "NOJOB", "NOTDEFERRED", "LOCKLOST", "ACKED", "TOOLATE", "NOTHELD", "STALETOKEN"}

// fine says whether a command was answered, and not by an error. If not, this connection is
// of no more use. Errors that faults don't explain are noted.
func (s *session) fine(v harness.Value, command string) bool {
	if v.Kind == 0 {
		return false
	}
	if v.Kind != '-' {
		return true
	}
	code, _, _ := strings.Cut(v.Str, " ")
	s.b.change(func() { s.b.counts[command+" -"+code]++ })
	for _, e := range expected {
		if code == e {
			return false
		}
	}
	s.b.change(func() {
		s.b.odd = append(s.b.odd, fmt.Sprintf("%8.3f %s at node %s: %v", s.m.now().Seconds(), command, s.node, v))
	})
	return false
}

// pick draws a kind by weight.
func pick() *kind {
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	n := rand.IntN(total)
	for _, k := range kinds {
		if n -= k.weight; n < 0 {
			return k
		}
	}
	return kinds[0]
}

func (s *session) produce() bool {
	if !s.adds.Load() {
		time.Sleep(50 * time.Millisecond)
		return false
	}
	full := false
	s.b.change(func() { full = s.b.open > backlog })
	time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	if full {
		return true
	}
	k := pick()
	if k.family != nil {
		return k.family(s, k)
	}
	j := &job{kind: k}
	if k.keys > 0 {
		// Two kinds never use the same key.
		j.key = fmt.Sprint(k.name, "-", rand.IntN(k.keys))
		return s.addJob(j, "KEY", j.key)
	}
	return s.addJob(j)
}

// addDeferred adds a deferred job with some that it blocks, and releases it.
func (s *session) addDeferred(k *kind) bool {
	parent := &job{kind: k}
	if !s.addJob(parent) {
		return false
	}
	for range rand.IntN(3) {
		if !s.addJob(&job{kind: named("blocked"), parents: []*job{parent}}, "BLOCKEDBY", parent.id) {
			return false
		}
	}
	time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
	return s.release(parent)
}

// release releases a deferred job.
func (s *session) release(j *job) bool {
	s.b.change(func() {
		if j.released == 0 {
			j.released = s.m.now()
		}
	})
	return s.fine(s.Do("RELEASEJOB", j.id), "RELEASEJOB")
}

// addAfter adds a job or two, and one that waits for them.
func (s *session) addAfter(k *kind) bool {
	child, args := &job{kind: k}, []any{"AFTER"}
	for range 1 + rand.IntN(2) {
		parent := &job{kind: named("two")}
		if !s.addJob(parent) {
			return false
		}
		child.parents, args = append(child.parents, parent), append(args, parent.id)
	}
	return s.addJob(child, args...)
}

// addJob adds a job, and writes its history.
func (s *session) addJob(j *job, options ...any) bool {
	j.node, j.sent, j.until = s.node, s.m.now(), never
	s.b.add(j)
	body := strconv.Itoa(j.number)
	if n := j.kind.size - len(body); n > 0 {
		body += " " + strings.Repeat("x", n)
	}
	args := []any{"ADDJOB", j.kind.name, body, addTimeout.Milliseconds()}
	for _, word := range strings.Fields(j.kind.options) {
		args = append(args, word)
	}
	v := s.Do(append(args, options...)...)
	fine := s.fine(v, "ADDJOB")
	s.b.change(func() {
		j.until, j.answer = s.m.now(), fmt.Sprintf("%.120v", v)
		if v.Kind == '+' {
			j.id = v.Str
			if len(j.deliveries) == 0 {
				s.b.open++
			}
		}
	})
	return fine
}

func (s *session) consume() bool {
	// At-most-once jobs are fetched one by one: if an answer doesn't come, no more than one job is
	// lost with it.
	once, count := rand.IntN(3) == 0, 1
	if !once {
		count += rand.IntN(8)
	}
	args := []any{"GETJOB", "TIMEOUT", 300, "COUNT", count, "FROM"}
	for _, i := range rand.Perm(len(kinds)) {
		if kinds[i].once == once {
			args = append(args, kinds[i].name)
		}
	}
	sent := s.m.now()
	v := s.Do(args...)
	at := s.m.now()
	if v.Kind == 0 {
		s.b.change(func() { s.b.silent = append(s.b.silent, silence{sent, at, once}) })
	}
	if !s.fine(v, "GETJOB") {
		return false
	}
	if v.Null {
		return once || rand.IntN(3) > 0 // other nodes may have some
	}
	// All of them count as delivered, even if the client ends before it has worked on all.
	got := make([]*job, len(v.Elems))
	for i, e := range v.Elems {
		s.b.change(func() { got[i] = s.b.delivered(s.node, e, sent, at) })
	}
	for i, j := range got {
		if j != nil && !s.work(j, v.Elems[i].Elems[1].Str) {
			return false
		}
	}
	return true
}

// delivered notes that a client was given a job, and returns it; nil if nobody added it.
func (b *books) delivered(node string, e harness.Value, sent, at moment) *job {
	text, _, _ := strings.Cut(e.Elems[2].Str, " ")
	number, err := strconv.Atoi(text)
	if err != nil || number >= len(b.jobs) {
		b.odd = append(b.odd, fmt.Sprintf("%8.3f GETJOB at node %s gives what nobody added: %.200v", at.Seconds(), node, e))
		return nil
	}
	j := b.jobs[number]
	if len(j.deliveries) == 0 && j.id != "" {
		b.open--
	}
	j.deliveries = append(j.deliveries, delivery{node: node, sent: sent, at: at})
	if j.id != "" && j.id != e.Elems[1].Str || j.kind.name != e.Elems[0].Str {
		b.odd = append(b.odd, fmt.Sprintf("%8.3f GETJOB gives %.200v for\n%v", at.Seconds(), e, j))
	}
	return j
}

// work is what a client does with a job that it was given. Mostly it acknowledges the job.
func (s *session) work(j *job, id string) bool {
	n := rand.IntN(100)
	if !s.adds.Load() {
		n = 0
	}
	switch {
	case n < 80 || j.kind.once:
		return s.end(j, id, "ACKJOB")
	case n < 82:
		return s.linger(j, id)
	case n < 85:
		return s.end(j, id, "FASTACK")
	case n < 92:
		return s.end(j, id, "NACK")
	case n < 96: // a client that dies, or forgets it
		return true
	}
	// The job is acknowledged at another node, on a connection of its own.
	other := s.m.anyNode()
	if other == nil {
		return true
	}
	if conn, err := harness.Dial(other.addr, patience); err == nil {
		defer conn.Close()
		(&session{conn, s.crowd, other.name}).end(j, id, "ACKJOB")
	}
	return true
}

// linger works on a job for longer than its retry time, and says so.
func (s *session) linger(j *job, id string) bool {
	last := 0
	s.b.change(func() { last = len(j.deliveries) - 1 })
	for range 4 {
		time.Sleep(retry / 3)
		sent := s.m.now()
		if v := s.Do("WORKING", id); v.Kind != ':' {
			return s.fine(v, "WORKING")
		}
		s.b.change(func() { j.deliveries[last].working = append(j.deliveries[last].working, sent) })
	}
	return s.end(j, id, "ACKJOB")
}

// lock acquires a lock, holds it for a while, and releases it.
func (s *session) lock() bool {
	if !s.adds.Load() {
		time.Sleep(50 * time.Millisecond)
		return false
	}
	ttl := 500*time.Millisecond + time.Duration(rand.IntN(2000))*time.Millisecond
	h := &holding{name: fmt.Sprint("lock", rand.IntN(4)), owner: fmt.Sprintf("%x", rand.Uint64()), node: s.node, sent: s.m.now()}
	args := []any{"LOCK.ACQUIRE", h.name, h.owner, ttl.Milliseconds()}
	if rand.IntN(2) == 0 {
		args = append(args, "WAIT", rand.IntN(1500))
	}
	v := s.Do(args...)
	if !s.fine(v, "LOCK.ACQUIRE") {
		return false
	}
	if v.Null {
		time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
		return true
	}
	h.at, h.token, h.end = s.m.now(), v.Int(), h.sent+ttl
	s.b.change(func() { s.b.locks = append(s.b.locks, h) })
	tell := func(command string, more ...any) (harness.Value, moment) {
		sent := s.m.now()
		v := s.Do(append([]any{command, h.name, h.owner, h.token}, more...)...)
		s.b.change(func() { h.said = append(h.said, fmt.Sprintf("%.3f %s: %v", sent.Seconds(), command, v)) })
		return v, sent
	}
	for range rand.IntN(3) {
		time.Sleep(time.Duration(rand.Int64N(int64(ttl))) / 2)
		v, sent := tell("LOCK.EXTEND", ttl.Milliseconds())
		if !s.fine(v, "LOCK.EXTEND") {
			return v.Kind != 0 // the lease that the lock has runs on
		}
		s.b.change(func() { h.end = max(h.end, sent+ttl) })
	}
	switch rand.IntN(4) {
	case 0: // a holder that dies
		return false
	case 1: // one that is late
		time.Sleep(h.end - s.m.now())
	}
	s.b.change(func() { h.end = min(h.end, s.m.now()) })
	v, _ = tell("LOCK.RELEASE")
	return s.fine(v, "LOCK.RELEASE")
}

// end tells a node that a job is done, or is to be given to another client.
func (s *session) end(j *job, id, command string) bool {
	e := end{command: command, node: s.node, sent: s.m.now(), until: never}
	i := 0
	s.b.change(func() {
		i = len(j.ends)
		j.ends = append(j.ends, e)
	})
	args := []any{command, id}
	if command == "NACK" {
		args = append(args, [][]any{nil, {"DELAY", 1 + rand.IntN(3)}, {"REASON", "it failed"}, {"DELAY", 1, "REASON", strings.Repeat("why ", 200)}}[rand.IntN(4)]...)
	}
	v := s.Do(args...)
	fine := s.fine(v, command)
	s.b.change(func() { j.ends[i].until, j.ends[i].answer = s.m.now(), fmt.Sprintf("%.120v", v) })
	return fine
}
