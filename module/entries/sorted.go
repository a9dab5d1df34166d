package entries

import (
	"iter"
	"slices"
)

// sorted is entries in the order of kinds and names. They lie in pieces, so that one more among very many moves few of them. No piece is
// empty.
type sorted struct {
	pieces [][]*Entry
	count  int
}

const pieceMost = 512 // entries; a piece that has more is cut in two

// find is where an entry of a key is, or belongs: a piece, and the place in it.
func (s *sorted) find(e *Entry) (piece, at int, found bool) {
	piece, found = slices.BinarySearchFunc(s.pieces, e, func(p []*Entry, e *Entry) int { return compareKeys(p[0], e) })
	if !found && piece > 0 {
		piece--
	}
	if piece < len(s.pieces) {
		at, found = slices.BinarySearchFunc(s.pieces[piece], e, compareKeys)
	}
	return piece, at, found
}

// put adds an entry, or replaces the one of its key.
func (s *sorted) put(e *Entry) {
	piece, at, found := s.find(e)
	switch {
	case found:
		s.pieces[piece][at] = e
		return
	case len(s.pieces) == 0:
		s.pieces = [][]*Entry{{e}}
	default:
		p := slices.Insert(s.pieces[piece], at, e)
		if s.pieces[piece] = p; len(p) > pieceMost {
			half := len(p) / 2
			s.pieces = slices.Insert(s.pieces, piece+1, slices.Clone(p[half:]))
			clear(p[half:])
			s.pieces[piece] = p[:half]
		}
	}
	s.count++
}

// remove takes out the entry of a key.
func (s *sorted) remove(e *Entry) {
	piece, at, found := s.find(e)
	if !found {
		return
	}
	s.count--
	if s.pieces[piece] = slices.Delete(s.pieces[piece], at, at+1); len(s.pieces[piece]) == 0 {
		s.pieces = slices.Delete(s.pieces, piece, piece+1)
	}
}

// from are the entries from a key on.
func (s *sorted) from(e *Entry) iter.Seq[*Entry] {
	piece, at, _ := s.find(e)
	return func(yield func(*Entry) bool) {
		for i, begin := piece, at; i < len(s.pieces); i, begin = i+1, 0 {
			for _, e := range s.pieces[i][min(begin, len(s.pieces[i])):] {
				if !yield(e) {
					return
				}
			}
		}
	}
}
