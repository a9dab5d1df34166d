package bus

import (
	"fmt"
	"sync"
	"time"
)

// reporter writes the goroutines' log lines, and keeps a peer that sends
// rubbish as fast as it can from filling the log. The owner logs by itself.
type reporter struct {
	log func(level, text string)

	mu    sync.Mutex
	quiet map[string]*silence
}

// silence is how long lines about one subject are held back.
type silence struct {
	until time.Time
	held  int
}

const (
	quietFor    = 10 * time.Second
	maxSubjects = 256
)

// always logs a line without a limit, for lines that can't come often.
func (r *reporter) always(level, format string, args ...any) {
	if r.log != nil {
		r.log(level, fmt.Sprintf(format, args...))
	}
}

// limited logs at most one line on a subject in quietFor.
func (r *reporter) limited(subject, level, format string, args ...any) {
	if r.log == nil {
		return
	}
	held, ok := r.due(subject, time.Now())
	if !ok {
		return
	}
	text := fmt.Sprintf(format, args...)
	if held > 0 {
		text += fmt.Sprintf(" (and %d more like it)", held)
	}
	r.log(level, text)
}

func (r *reporter) due(subject string, now time.Time) (held int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.quiet) >= maxSubjects {
		for subject, s := range r.quiet {
			if now.After(s.until) {
				delete(r.quiet, subject)
			}
		}
		if len(r.quiet) >= maxSubjects && r.quiet[subject] == nil {
			subject = "" // too many subjects: new ones share this one
		}
	}
	s := r.quiet[subject]
	if s == nil {
		s = &silence{}
		r.quiet[subject] = s
	}
	if now.Before(s.until) {
		s.held++
		return 0, false
	}
	held, s.held, s.until = s.held, 0, now.Add(quietFor)
	return held, true
}
