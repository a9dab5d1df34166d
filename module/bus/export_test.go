package bus

// Stats counts what happened since Open.
type Stats struct {
	Peers    int    // connected
	Pending  int    // connections that haven't proved themselves yet
	Accepted uint64 // connections taken by the listener
	Refused  uint64 // of those, refused or cut off before they were up
	Panics   uint64 // recovered in goroutines
	Dropped  uint64 // messages, to known peers and unknown ones

	InboxBytes int64 // received, not drained
}

// Stats counts over all peers.
func (b *Bus) Stats() Stats {
	s := Stats{
		Pending:    int(b.pending.len.Load()),
		Accepted:   b.accepted.Load(),
		Refused:    b.refused.Load(),
		Panics:     b.panics.Load(),
		Dropped:    b.dropped,
		InboxBytes: b.inboxBytes.Load(),
	}
	for _, p := range b.peers {
		if p.conn != nil {
			s.Peers++
		}
	}
	return s
}
