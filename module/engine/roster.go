package engine

// roster is a map that can be looked through bit by bit while it changes: what is in
// it from the beginning of a pass to its end is met.
type roster[T any] struct {
	by   map[string]*entry[T]
	all  []*entry[T]
	left int // entries from 0 on that the pass has still to meet
}

type entry[T any] struct {
	name string
	at   int
	v    T
}

func newRoster[T any]() roster[T] { return roster[T]{by: map[string]*entry[T]{}} }

// get finds an entry's value; nil where there is none.
func (r *roster[T]) get(name string) *T {
	if e := r.by[name]; e != nil {
		return &e.v
	}
	return nil
}

// make finds an entry's value, or makes it of a first one.
func (r *roster[T]) make(name string, first T) *T {
	e := r.by[name]
	if e == nil {
		e = &entry[T]{name: name, at: len(r.all), v: first}
		r.by[name] = e
		r.all = append(r.all, e)
	}
	return &e.v
}

func (r *roster[T]) remove(name string) {
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

func (r *roster[T]) len() int { return len(r.all) }

// begin begins a pass.
func (r *roster[T]) begin() { r.left = len(r.all) }

// pass goes on with it for a number of entries, removing those that aren't to be kept.
// True: there is more.
func (r *roster[T]) pass(budget int, keep func(name string, v *T) bool) (more bool) {
	for ; r.left > 0 && budget > 0; budget-- {
		r.left--
		if e := r.all[r.left]; !keep(e.name, &e.v) {
			r.remove(e.name)
		}
	}
	return r.left > 0
}
