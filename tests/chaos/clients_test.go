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
	weight  int
	options string
	copies  int           // REPLICATE: how many nodes hold it when its ID is answered
	once    bool          // RETRY 0
	delay   time.Duration // DELAY
	retry   time.Duration // RETRY
	size    int           // of the body, at least
}

var kinds = []*kind{
	{name: "one", weight: 4, options: "REPLICATE 1 RETRY 2", copies: 1, retry: 2 * time.Second},
	{name: "two", weight: 6, options: "REPLICATE 2 RETRY 2", copies: 2, retry: 2 * time.Second},
	{name: "three", weight: 6, options: "REPLICATE 3 RETRY 2", copies: 3, retry: 2 * time.Second},
	{name: "async", weight: 2, options: "REPLICATE 3 ASYNC RETRY 2", copies: 1, retry: 2 * time.Second},
	{name: "delayed", weight: 2, options: "REPLICATE 2 DELAY 1 RETRY 2", copies: 2, delay: time.Second, retry: 2 * time.Second},
	{name: "once", weight: 4, options: "REPLICATE 1 RETRY 0", copies: 1, once: true},
}

// patience is how long a client waits for an answer; addTimeout what ADDJOB is
// given for its copies.
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
	return c
}

func (c *crowd) stop() {
	c.adds.Store(false)
	c.over.Store(true)
	c.wait.Wait()
}

// session is a connection to a node.
type session struct {
	*harness.Conn
	*crowd
	node string
}

// run starts a client, which works on connections to one random node after the
// other, whatever becomes of them. What it does says whether the connection is
// of more use.
func (c *crowd) run(work func(*session) bool) {
	c.wait.Go(func() {
		for !c.over.Load() {
			s := c.m.servers[rand.IntN(len(c.m.servers))]
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
var expected = []string{"NOREPL", "LOADING", "NOQUORUM", "READONLY", "LEAVING", "PAUSED", "UNBLOCKED"}

// fine says whether an answer is one. Of others no more is to be had from this
// connection; they are noted where faults don't explain them.
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
	return s.addJob(&job{kind: k})
}

// addJob adds a job, and keeps its account.
func (s *session) addJob(j *job) bool {
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
	v := s.Do(args...)
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
	args := []any{"GETJOB", "TIMEOUT", 300, "COUNT", 1 + rand.IntN(8), "FROM"}
	for _, i := range rand.Perm(len(kinds)) {
		args = append(args, kinds[i].name)
	}
	sent := s.m.now()
	v := s.Do(args...)
	at := s.m.now()
	if v.Kind == 0 {
		s.b.change(func() { s.b.silent = append(s.b.silent, silence{sent, at}) })
	}
	if !s.fine(v, "GETJOB") {
		return false
	}
	if v.Null {
		return rand.IntN(3) > 0 // somewhere else there may be some
	}
	var got []*job
	for _, e := range v.Elems {
		text, _, _ := strings.Cut(e.Elems[2].Str, " ")
		number, err := strconv.Atoi(text)
		s.b.change(func() {
			if err != nil || number >= len(s.b.jobs) {
				s.b.odd = append(s.b.odd, fmt.Sprintf("%8.3f GETJOB at node %s gives what nobody added: %.200v", at.Seconds(), s.node, e))
				return
			}
			j := s.b.jobs[number]
			if len(j.deliveries) == 0 && j.id != "" {
				s.b.open--
			}
			j.deliveries = append(j.deliveries, delivery{node: s.node, sent: sent, at: at})
			if j.id != "" && j.id != e.Elems[1].Str || j.kind.name != e.Elems[0].Str {
				s.b.odd = append(s.b.odd, fmt.Sprintf("%8.3f GETJOB gives %.200v for\n%v", at.Seconds(), e, j))
			}
			got = append(got, j)
		})
		if len(got) == 0 || got[len(got)-1].number != number {
			return false
		}
		if !s.work(got[len(got)-1], e.Elems[1].Str) {
			return false
		}
	}
	return true
}

// work is what a client does with a job that it got: done it is, mostly.
func (s *session) work(j *job, id string) bool {
	n := rand.IntN(100)
	if !s.adds.Load() {
		n = 0
	}
	switch {
	case n < 80 || j.kind.once:
		return s.end(j, id, "ACKJOB")
	case n < 85:
		return s.end(j, id, "FASTACK")
	case n < 92:
		return s.end(j, id, "NACK")
	case n < 96: // a client that dies, or forgets it
		return true
	}
	// Elsewhere, by a connection of its own.
	other := s.m.servers[rand.IntN(len(s.m.servers))]
	if conn, err := harness.Dial(other.addr, patience); err == nil {
		defer conn.Close()
		(&session{conn, s.crowd, other.name}).end(j, id, "ACKJOB")
	}
	return true
}

// end tells a node that a job is done, or is to be given to another client.
func (s *session) end(j *job, id, command string) bool {
	e := end{command: command, node: s.node, sent: s.m.now(), until: never}
	i := 0
	s.b.change(func() {
		i = len(j.ends)
		j.ends = append(j.ends, e)
	})
	v := s.Do(command, id)
	fine := s.fine(v, command)
	s.b.change(func() { j.ends[i].until, j.ends[i].answer = s.m.now(), fmt.Sprintf("%.120v", v) })
	return fine
}
