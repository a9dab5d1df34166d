package commands

import (
	"bytes"
	"math/bits"
)

// glob is a pattern in which * is any text. match searches for each part between two stars
// from left to right, and takes the first place where it is found. So the time to match is
// bounded by the text's length times a 64th of the part's.
type glob struct {
	parts []part // the text begins with the first and ends with the last
	least int    // bytes of the shortest text that fits
	steps int    // steps of all matches until now; each took a few ns at most
}

// part is a piece of a pattern without stars.
type part struct {
	size int    // bytes of text that it matches
	text []byte // nil: masks says what it matches
	// masks[c*words:][:words] says at which places of the part the byte c may be, a bit a
	// place.
	masks []uint64
	words int
	state []uint64 // the state of find
}

// places is the set of bytes that may be at a place.
type places [4]uint64

func (s *places) add(c byte)      { s[c/64] |= 1 << (c % 64) }
func (s *places) has(c byte) bool { return s[c/64]>>(c%64)&1 != 0 }

// one returns the only byte of a set; not ok if the set has another size.
func (s *places) one() (c byte, ok bool) {
	n := 0
	for i, w := range s {
		if n += bits.OnesCount64(w); w != 0 {
			c = byte(i*64 + bits.TrailingZeros64(w))
		}
	}
	return c, n == 1
}

var anyByte = places{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}

// newGlob reads a pattern. If the pattern p doesn't begin with a star, head returns the
// bytes that its first element matches, and the element's length in the pattern.
func newGlob[P string | []byte](pattern P, head func(p P) (n int, set places)) *glob {
	g := &glob{}
	var sets []places
	end := func() {
		if len(sets) > 0 || len(g.parts) == 0 {
			g.parts = append(g.parts, newPart(sets))
			g.least += len(sets)
		}
		sets = nil
	}
	for i := 0; i < len(pattern); {
		if pattern[i] == '*' {
			end()
			i++
			continue
		}
		n, set := head(pattern[i:])
		sets = append(sets, set)
		i += n
	}
	if len(pattern) > 0 && len(sets) == 0 && pattern[len(pattern)-1] == '*' {
		g.parts = append(g.parts, part{text: []byte{}})
	} else {
		end()
	}
	return g
}

func newPart(sets []places) part {
	p := part{size: len(sets), text: []byte{}}
	for i := range sets {
		c, ok := sets[i].one()
		if !ok {
			p.setMasks(sets)
			return p
		}
		p.text = append(p.text, c)
	}
	return p
}

func (p *part) setMasks(sets []places) {
	p.words = (p.size + 63) / 64
	p.text, p.masks, p.state = nil, make([]uint64, 256*p.words), make([]uint64, p.words)
	all := make([]uint64, p.words)
	for i := range sets {
		if sets[i] == anyByte {
			all[i/64] |= 1 << (i % 64)
			continue
		}
		for c := range 256 {
			if sets[i].has(byte(c)) {
				p.masks[c*p.words+i/64] |= 1 << (i % 64)
			}
		}
	}
	for i := range p.masks {
		p.masks[i] |= all[i%p.words]
	}
}

// fits says whether the part matches a text. The text must have the part's size.
func (p *part) fits(text []byte) bool {
	if p.text != nil {
		return bytes.Equal(p.text, text)
	}
	for i, c := range text {
		if p.masks[int(c)*p.words+i/64]>>(i%64)&1 == 0 {
			return false
		}
	}
	return true
}

// find returns the end of the first place in a text where a part fits; -1: there is none.
func (p *part) find(text []byte) (end int) {
	if p.text != nil {
		if i := bytes.Index(text, p.text); i >= 0 {
			return i + p.size
		}
		return -1
	}
	if p.words == 1 {
		at, last := uint64(0), uint64(1)<<(p.size-1)
		for i, c := range text {
			if at = (at<<1 | 1) & p.masks[c]; at&last != 0 {
				return i + 1
			}
		}
		return -1
	}
	// Bit k of the state says that the text so far ends with the first k+1 bytes of the
	// part.
	clear(p.state)
	last := uint64(1) << ((p.size - 1) % 64)
	for i, c := range text {
		carry, masks := uint64(1), p.masks[int(c)*p.words:][:p.words]
		for k, was := range p.state {
			p.state[k] = (was<<1 | carry) & masks[k]
			carry = was >> 63
		}
		if p.state[p.words-1]&last != 0 {
			return i + 1
		}
	}
	return -1
}

func (g *glob) match(text []byte) bool {
	g.steps++
	first, last := &g.parts[0], &g.parts[len(g.parts)-1]
	if first == last {
		return len(text) == g.least && first.fits(text)
	}
	if len(text) < g.least || !first.fits(text[:first.size]) || !last.fits(text[len(text)-last.size:]) {
		return false
	}
	text = text[first.size : len(text)-last.size]
	for i := 1; i < len(g.parts)-1; i++ {
		p := &g.parts[i]
		end := p.find(text)
		if end < 0 {
			g.steps += len(text) * max(p.words, 1)
			return false
		}
		g.steps += end * max(p.words, 1)
		text = text[end:]
	}
	return true
}

// costs returns how many patterns this one counts as, for maxPatterns.
func (g *glob) costs() int {
	if len(g.parts) > plainParts {
		return patternCosts
	}
	for i := 1; i < len(g.parts)-1; i++ {
		if g.parts[i].text == nil {
			return patternCosts
		}
	}
	return 1
}

// queueByte reads the first element of a pattern for queues: ? is any byte, \ makes the
// next byte literal.
func queueByte(p string) (n int, set places) {
	switch {
	case p[0] == '?':
		return 1, anyByte
	case p[0] != '\\':
		set.add(p[0])
		return 1, set
	case len(p) > 1:
		set.add(p[1])
		return 2, set
	}
	return 1, set
}

// scanByte reads the first element of SCAN's MATCH: ? [set] [^set], and \ before a literal
// character.
func scanByte(p []byte) (n int, set places) {
	switch {
	case p[0] == '?':
		return 1, anyByte
	case p[0] == '[':
		return scanSet(p)
	case p[0] == '\\' && len(p) > 1:
		set.add(p[1])
		return 2, set
	}
	set.add(p[0])
	return 1, set
}

func scanSet(p []byte) (n int, set places) {
	i, not := 1, false
	if i < len(p) && p[i] == '^' {
		not = true
		i++
	}
	for ; i < len(p) && p[i] != ']'; i++ {
		lo := p[i]
		if lo == '\\' && i+1 < len(p) {
			i++
			lo = p[i]
		}
		hi := lo
		if i+2 < len(p) && p[i+1] == '-' {
			hi = p[i+2]
			i += 2
		}
		for c := int(min(lo, hi)); c <= int(max(lo, hi)); c++ {
			set.add(byte(c))
		}
	}
	if not {
		for i := range set {
			set[i] = ^set[i]
		}
	}
	return min(i+1, len(p)), set
}
