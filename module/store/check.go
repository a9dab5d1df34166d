//go:build check

package store

// mustKnow panics if a queue is detached and not [Store.Listed]: the tables of jobs, timers and per-key queues don't have what a change
// of its jobs would change. Only tests are built so (the tag check).
func (s *Store) mustKnow(q *Queue) {
	if q.state == queueLoose && !s.Listed(q) {
		panic("store: a job changes whose queue isn't listed")
	}
}
