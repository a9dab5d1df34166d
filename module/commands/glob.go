package commands

// glob says whether a text fits a pattern in which * is any text. With what else there
// is head matches one byte: n is how long that is in the pattern.
func glob[P string | []byte](pattern P, text []byte, head func(p P, c byte) (n int, ok bool)) bool {
	p, i, star, mark := 0, 0, -1, 0
	for i < len(text) {
		if p < len(pattern) {
			if pattern[p] == '*' {
				star, mark = p, i
				p++
				continue
			}
			if n, ok := head(pattern[p:], text[i]); ok {
				p, i = p+n, i+1
				continue
			}
		}
		if star < 0 {
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

// queueByte matches a byte with the head of a pattern for queues: ? is any, \ takes the
// next one as it is.
func queueByte(p string, c byte) (n int, ok bool) {
	switch p[0] {
	case '?':
		return 1, true
	case '\\':
		return 2, len(p) > 1 && p[1] == c
	}
	return 1, p[0] == c
}

// scanByte matches a byte with the head of SCAN's MATCH: * ? [set] [^set] and \ before a
// literal character.
func scanByte(p []byte, c byte) (n int, ok bool) {
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
