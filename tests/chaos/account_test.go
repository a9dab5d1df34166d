package chaos

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// moment is a time since the run began.
type moment = time.Duration

// never is later than everything.
const never = moment(1<<63 - 1)

// job is the history of one job, as its clients saw it.
type job struct {
	number  int
	kind    *kind
	key     string // of a unique job
	parents []*job
	node    string
	sent    moment
	until   moment // the answer came, or none
	id      string // empty where nothing was promised
	answer  string

	released   moment // RELEASEJOB was sent
	uncertain  bool   // a node said so; only at-most-once jobs
	deliveries []delivery
	ends       []end
}

// delivery is one GETJOB that gave the job to a client.
type delivery struct {
	node     string
	sent, at moment
	working  []moment // when each WORKING was sent that extended it
}

// end is an ACKJOB, FASTACK or NACK of a client.
type end struct {
	command string
	node    string
	sent    moment
	until   moment
	answer  string
}

func (j *job) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "job %d (%s) %s", j.number, j.kind.name, j.id)
	if j.key != "" {
		fmt.Fprintf(&b, " key %s", j.key)
	}
	for _, p := range j.parents {
		fmt.Fprintf(&b, " after job %d", p.number)
	}
	fmt.Fprintf(&b, "\n  %8.3f to %8.3f ADDJOB at node %s: %s", j.sent.Seconds(), j.until.Seconds(), j.node, j.answer)
	if j.uncertain {
		fmt.Fprintf(&b, "\n  a node said that it is uncertain whether it was delivered")
	}
	if j.released > 0 {
		fmt.Fprintf(&b, "\n  %8.3f RELEASEJOB", j.released.Seconds())
	}
	for _, d := range j.deliveries {
		fmt.Fprintf(&b, "\n  %8.3f to %8.3f GETJOB at node %s", d.sent.Seconds(), d.at.Seconds(), d.node)
		for _, w := range d.working {
			fmt.Fprintf(&b, ", WORKING %.3f", w.Seconds())
		}
	}
	for _, e := range j.ends {
		fmt.Fprintf(&b, "\n  %8.3f to %8.3f %s at node %s: %s", e.sent.Seconds(), e.until.Seconds(), e.command, e.node, e.answer)
	}
	return b.String()
}

// firstGet is when the first GETJOB was sent that gave a client the job.
func (j *job) firstGet() moment {
	first := never
	for _, d := range j.deliveries {
		first = min(first, d.sent)
	}
	return first
}

// firstAck is when a client first said that the job is done.
func (j *job) firstAck() moment {
	first := never
	for _, e := range j.ends {
		if e.command != "NACK" {
			first = min(first, e.sent)
		}
	}
	return first
}

// books hold the histories of a round.
type books struct {
	mu     sync.Mutex
	jobs   []*job // by number
	open   int    // promised, and not delivered yet
	locks  []*holding
	silent []silence // GETJOBs whose answer didn't come: it may have had jobs in it
	odd    []string  // answers that nobody expects
	counts map[string]int
	freed  map[string]moment // RELEASEJOB was sent for this ID
}

// silence is a command that wasn't answered.
type silence struct {
	sent, until moment
	once        bool // it asked for one job, at most once
}

func newBooks() *books { return &books{counts: map[string]int{}, freed: map[string]moment{}} }

// add gives a job its number, and begins its history.
func (b *books) add(j *job) *job {
	b.mu.Lock()
	defer b.mu.Unlock()
	j.number = len(b.jobs)
	b.jobs = append(b.jobs, j)
	return j
}

// byID returns the promised jobs by their IDs.
func (b *books) byID() map[string]*job {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string]*job{}
	for _, j := range b.jobs {
		if j.id != "" {
			all[j.id] = j
		}
	}
	return all
}

// change calls do, which may read and change the books, while no other client does.
func (b *books) change(do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	do()
}

// holding is a lock that a client was given.
type holding struct {
	name, owner, node string
	token             int64
	sent, at          moment // of LOCK.ACQUIRE
	end               moment // by the client's own reckoning
	said              []string
}

func (h *holding) String() string {
	return fmt.Sprintf("%8.3f to %8.3f lock %s owner %s token %d at node %s, held until %.3f; %s",
		h.sent.Seconds(), h.at.Seconds(), h.name, h.owner, h.token, h.node, h.end.Seconds(), strings.Join(h.said, ", "))
}
