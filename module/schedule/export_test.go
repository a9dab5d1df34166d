package schedule

// Spans is how often the clocks of a schedule's zone were asked.
func Spans(s *Schedule) int { return s.spans }
