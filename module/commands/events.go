package commands

import (
	"fmt"

	"jobmesh/module/engine"
	"jobmesh/rm"
)

// Events (engine/events.go) as keyspace notifications, and as entries of a stream that others read by XREAD. JOBMESH EVENT logs an entry: by
// that name rename-command and users' rights can't come between.

const (
	eventsKey    = "jobmesh:events"
	eventsMaxLen = 100_000
	maxEventsKey = 1024 // bytes
)

// eventStream is the stream of events, and what becomes of it.
type eventStream struct {
	names    string // as jobmesh.events has them
	wanted   engine.EventSet
	notifies bool // notify-keyspace-events has module events
	stream   rm.Stream
	full     uint64 // events that were lost for want of memory
	told     bool   // the log says that the key holds something else
}

func (m *module) setEvents(names string) error {
	set, err := engine.ParseEvents(names)
	if err != nil {
		return err
	}
	m.events.names, m.events.wanted = names, set
	m.wantEvents()
	return nil
}

func (m *module) setEventsKey(name string) error {
	if name == "" || len(name) > maxEventsKey {
		return fmt.Errorf("the key of the events has 1 to %d bytes", maxEventsKey)
	}
	m.events.stream.Key = name
	return nil
}

// readEvents finds out whether the server publishes module events.
func (m *module) readEvents() {
	if notifies := m.server.KeyspaceEvents(); notifies != m.events.notifies {
		m.events.notifies = notifies
		m.wantEvents()
	}
}

// wantEvents tells the engine which events are wanted. Other modules can listen to notifications though the server publishes none; they
// have always got drop, which is rare.
func (m *module) wantEvents() {
	bare := engine.EventSet(1) << engine.EventDrop
	if m.events.notifies {
		bare = engine.AllEvents
	}

	m.node.SetEvents(m.events.wanted, bare)
}

// happened publishes an event, and adds it to the stream if that is wanted. Above 95 % of maxmemory the stream doesn't grow.
func (m *module) happened(c *rm.Ctx, h *engine.Happening) {
	if m.events.notifies || h.Event == engine.EventDrop {
		c.Notify(h.Event.String(), h.Queue)
	}
	switch {
	case h.Fields == nil:
	case m.node.MemoryLevel() >= 2:
		m.events.full++
	default:
		c.AddEntry(&m.events.stream, h.Fields)
	}
}

// tellEvents logs, once, that events are lost because their key holds something else.
func (m *module) tellEvents() {
	_, _, refused := m.server.Entries()
	if refused && !m.events.told {
		m.server.Log(rm.Warning, "events are lost: the key %q, which jobmesh.events-key names, holds something that is no stream. Rename that key, or choose another one by CONFIG SET jobmesh.events-key", printable(m.events.stream.Key))
	}
	m.events.told = refused
}

func (m *module) eventInfo(w *rm.InfoWriter) {
	written, lost, _ := m.server.Entries()
	w.Int("events_written", int64(written))
	w.Int("events_lost", int64(lost+m.events.full))
}

// eventEffect is a logged event.
func (m *module) eventEffect(c *rm.Ctx) {
	m.internal(c, errInternalEvent, c.ApplyEntry)
}
