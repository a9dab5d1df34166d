package engine

// roster is a map that can be looked through bit by bit while it changes, in an order of
// its own, so that a seeded run repeats. It is empty to begin with.
type roster[K comparable, T any] struct {
	by   map[K]*entry[K, T]
	all  []*entry[K, T]
	left int // entries from 0 on that the pass has still to meet
	turn int // the entry that next met last
}

type entry[K comparable, T any] struct {
	name K
	at   int
	v    T
}

// get finds an entry's value; nil where there is none.
func (r *roster[K, T]) get(name K) *T {
	if e := r.by[name]; e != nil {
		return &e.v
	}
	return nil
}

// make finds an entry's value, or makes it of a first one.
func (r *roster[K, T]) make(name K, first T) *T {
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

func (r *roster[K, T]) remove(name K) {
	e := r.by[name]
	if e == nil {
		return
	}
	delete(r.by, name)
	// The last one takes its place. That was met already, or is yet to be: it may be
	// met twice, and is never left out.
	last := len(r.all) - 1
	r.all[e.at] = r.all[last]
	r.all[e.at].at = e.at
	r.all[last] = nil
	r.all = r.all[:last]
	r.left = min(r.left, last)
}

func (r *roster[K, T]) len() int { return len(r.all) }

// at is the i-th entry. A walk from the last one to the first meets all that stay there, as a
// pass does.
func (r *roster[K, T]) at(i int) (K, *T) { return r.all[i].name, &r.all[i].v }

// put sets an entry's value.
func (r *roster[K, T]) put(name K, v T) { *r.make(name, v) = v }

// next walks round by one entry; not to be called where there is none.
func (r *roster[K, T]) next() (K, *T) {
	r.turn = (r.turn + 1) % len(r.all)
	e := r.all[r.turn]
	return e.name, &e.v
}

// begin begins a pass, which meets all that is there from its beginning to its end.
func (r *roster[K, T]) begin() { r.left = len(r.all) }

// pass goes on with it for a number of entries, removing those that aren't to be kept.
// True: there is more.
func (r *roster[K, T]) pass(budget int, keep func(name K, v *T) bool) (more bool) {
	for ; r.left > 0 && budget > 0; budget-- {
		r.left--
		if e := r.all[r.left]; !keep(e.name, &e.v) {
			r.remove(e.name)
		}
	}
	return r.left > 0
}

// generations is a map that forgets: an entry is there until the turn after the next, however
// many there are. There is nothing to walk through.
type generations[K comparable, T any] struct{ young, old map[K]T }

func (g *generations[K, T]) put(name K, v T) {
	if g.young == nil {
		g.young = map[K]T{}
	}
	g.young[name] = v
}

func (g *generations[K, T]) get(name K) (v T, yes bool) {
	if v, yes = g.young[name]; !yes {
		v, yes = g.old[name]
	}
	return v, yes
}

// len counts those of both turns.
func (g *generations[K, T]) len() int { return len(g.young) + len(g.old) }

func (g *generations[K, T]) turn() { g.young, g.old = nil, g.young }

// recent remembers names alone.
type recent[K comparable] struct{ generations[K, struct{}] }

func (r *recent[K]) add(name K) { r.put(name, struct{}{}) }

func (r *recent[K]) has(name K) bool {
	_, yes := r.get(name)
	return yes
}
