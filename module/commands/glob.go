package commands

// globMatch is the pattern matching of SCAN's MATCH: * ? [set] [^set] and \ before
// a literal character.
func globMatch(pattern, s []byte) bool {
	var star, back = -1, 0
	p, i := 0, 0
	for i < len(s) {
		if p < len(pattern) {
			if pattern[p] == '*' {
				star, back = p, i
				p++
				continue
			}
			if n, ok := globOne(pattern[p:], s[i]); ok {
				p += n
				i++
				continue
			}
		}
		if star < 0 {
			return false
		}
		back++
		p, i = star+1, back
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// globOne matches one character against the head of a pattern, and tells how long
// that is.
func globOne(p []byte, c byte) (n int, ok bool) {
	switch p[0] {
	case '?':
		return 1, true
	case '\\':
		if len(p) > 1 {
			return 2, p[1] == c
		}
	case '[':
		i, not, hit := 1, false, false
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
			if lo > hi {
				lo, hi = hi, lo
			}
			hit = hit || lo <= c && c <= hi
		}
		return min(i+1, len(p)), hit != not
	}
	return 1, p[0] == c
}

// matches says whether a name fits a pattern: * is any text, ? any byte, \ takes
// the next byte as it is.
func matches(pattern string, name []byte) bool {
	p, i, star, mark := 0, 0, -1, 0
	for i < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, i
			p++
			continue
		case p < len(pattern) && pattern[p] == '?':
			p, i = p+1, i+1
			continue
		case p+1 < len(pattern) && pattern[p] == '\\' && pattern[p+1] == name[i]:
			p, i = p+2, i+1
			continue
		case p < len(pattern) && pattern[p] != '\\' && pattern[p] == name[i]:
			p, i = p+1, i+1
			continue
		case star < 0:
			return false
		}
		// Let the last star take one byte more.
		mark++
		p, i = star+1, mark
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}
