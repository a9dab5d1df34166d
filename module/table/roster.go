package table

// Roster is a map that can be walked bit by bit while it changes. The walk has an order of its own, so that a seeded
// run repeats. The zero Roster is empty.
type Roster[K comparable, T any] struct {
	by   map[K]*entry[K, T]
	all  []*entry[K, T]
	left int // how many entries, from 0 on, the pass has still to meet
	turn int // the entry that Next met last
}

type entry[K comparable, T any] struct {
	name K
	at   int
	v    T
}

// Get returns the value of an entry; nil: there is none.
func (r *Roster[K, T]) Get(name K) *T {
	if e := r.by[name]; e != nil {
		return &e.v
	}
	return nil
}

// Make returns the value of an entry. If there is none, Make adds it with the value first.
func (r *Roster[K, T]) Make(name K, first T) *T {
	e := r.by[name]
	if e == nil {
		if r.by == nil {
			r.by = map[K]*entry[K, T]{}
		}
		e = &entry[K, T]{name: name, at: len(r.all), v: first}
		r.by[name] = e
		r.all = append(r.all, e)
	}
	return &e.v
}

// Remove removes an entry, if there is one.
func (r *Roster[K, T]) Remove(name K) {
	e := r.by[name]
	if e == nil {
		return
	}
	delete(r.by, name)
	// The last entry takes its place. A pass has met that one already, or has still to meet it: it may meet the entry
	// twice, but never leaves it out.
	last := len(r.all) - 1
	r.all[e.at] = r.all[last]
	r.all[e.at].at = e.at
	r.all[last] = nil
	r.all = r.all[:last]
	r.left = min(r.left, last)
}

func (r *Roster[K, T]) Len() int { return len(r.all) }

// At is the i-th entry. A walk from the last entry to the first meets all that stay, as a pass does.
func (r *Roster[K, T]) At(i int) (K, *T) { return r.all[i].name, &r.all[i].v }

// Put sets the value of an entry, and adds the entry if there is none.
func (r *Roster[K, T]) Put(name K, v T) { *r.Make(name, v) = v }

// Next goes one entry further, round and round. There must be an entry.
func (r *Roster[K, T]) Next() (K, *T) {
	r.turn = (r.turn + 1) % len(r.all)
	e := r.all[r.turn]
	return e.name, &e.v
}

// Begin begins a pass, which meets all entries that are there from its beginning to its end.
func (r *Roster[K, T]) Begin() { r.left = len(r.all) }

// Left is how many entries the pass has still to meet.
func (r *Roster[K, T]) Left() int { return r.left }

// Pass goes on with the pass for budget entries, and removes those for which keep says no. True: there is more.
func (r *Roster[K, T]) Pass(budget int, keep func(name K, v *T) bool) (more bool) {
	for ; r.left > 0 && budget > 0; budget-- {
		r.left--
		if e := r.all[r.left]; !keep(e.name, &e.v) {
			r.Remove(e.name)
		}
	}
	return r.left > 0
}

// Generations is a map that forgets: an entry stays until the second [Generations.Turn] after it came, however many
// entries there are. It can't be walked.
type Generations[K comparable, T any] struct {
	young, old map[K]T
	turned     int64 // when [Generations.TurnDue] turned last
}

func (g *Generations[K, T]) Put(name K, v T) {
	if g.young == nil {
		g.young = map[K]T{}
	}
	g.young[name] = v
}

func (g *Generations[K, T]) Get(name K) (v T, yes bool) {
	if v, yes = g.young[name]; !yes {
		v, yes = g.old[name]
	}
	return v, yes
}

// Young counts the entries that came since the last turn.
func (g *Generations[K, T]) Young() int { return len(g.young) }

// Len counts the entries of both generations; a name in both counts twice.
func (g *Generations[K, T]) Len() int { return len(g.young) + len(g.old) }

// Turn forgets the old generation. The young one becomes the old one. The memory of the old one is used again.
func (g *Generations[K, T]) Turn() {
	g.young, g.old = g.old, g.young
	clear(g.young)
}

// TurnDue turns, and says so, if the young generation has begun ms ago, or has most entries. now is in ms, by a clock that is the same in each
// call. So an entry stays for ms at least, unless very many others come.
func (g *Generations[K, T]) TurnDue(now, ms int64, most int) (turns bool) {
	if now-g.turned < ms && len(g.young) < most {
		return false
	}
	g.Turn()
	g.turned = now
	return true
}

// Began sets when the young generation has begun, for a clock that was set.
func (g *Generations[K, T]) Began(now int64) { g.turned = now }

// Recent is Generations of names without values.
type Recent[K comparable] struct{ Generations[K, struct{}] }

func (r *Recent[K]) Add(name K) { r.Put(name, struct{}{}) }

func (r *Recent[K]) Has(name K) bool {
	_, yes := r.Get(name)
	return yes
}
