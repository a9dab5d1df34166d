package sim

import (
	"fmt"
	"slices"

	"jobmesh/module/engine"
	"jobmesh/module/entries"
)

// Settings of queues are changed at random nodes. When all has healed, all nodes have the same ones, and the last change
// of each name counts. A crash may take a change with it that its node had told nobody.

const (
	settingNames = 12
	compareSecs  = 100 // after all has healed, until all nodes have compared what they know
)

// settings are the changes that nodes have made, and what they told of them.
type settings struct {
	changes int
	last    map[string]*entries.Entry // the change with the greatest stamp
}

// changeSetting changes or deletes settings at a node.
func (s *Sim) changeSetting(n *node) {
	if !n.serves() {
		return
	}
	s.settings.changes++
	name, value := fmt.Sprint("s", s.r.IntN(settingNames)), fmt.Append(nil, s.settings.changes)
	n.call(func() {
		table := n.e.Entries()
		if s.r.IntN(3) == 0 {
			if value = nil; table.Get(engine.EntrySettings, name) == nil {
				return
			}
		}
		n.e.ChangeEntry(engine.EntrySettings, name, value)
		e := table.Known(engine.EntrySettings, name)
		s.trace("node %d: setting %s is %q, stamp %v", n.i, name, value, e.Stamp)
		if last := s.settings.last[name]; last == nil || e.Stamp.Compare(last.Stamp) > 0 {
			s.settings.last[name] = e
		}
	})
}

// judgeSettings is called at the end.
func (s *Sim) judgeSettings() {
	if s.Faults.Settings == 0 {
		return
	}
	first := s.nodes[0]
	for _, n := range s.nodes {
		if n.dead {
			continue
		}
		if n.e.Entries().Sum() != first.e.Entries().Sum() || !n.e.EntriesInStep() {
			s.fail("node %d has other settings than node %d: %v, %v", n.i, first.i, n.settings(), first.settings())
		}
	}
	lost := s.Fsync == EverySec || s.Wiped > 0 || s.Faults.Promotions > 0 || s.Faults.Replaced > 0
	for name, last := range s.settings.last {
		e := first.e.Entries().Known(engine.EntrySettings, name)
		switch {
		case e != nil && e.Stamp.Compare(last.Stamp) > 0:
			s.fail("setting %s has a stamp that nobody made: %v, the last is %v", name, e.Stamp, last.Stamp)
		case !lost && (e == nil || e.Stamp != last.Stamp || !slices.Equal(e.Value, last.Value)):
			s.fail("setting %s is %v, but the last change was %q by node %v", name, e, last.Value, last.Stamp)
		}
	}
}

// settings are a node's settings, for a failure's text.
func (n *node) settings() (all []string) {
	for _, e := range n.e.Entries().All() {
		all = append(all, fmt.Sprintf("%d %s=%s %v", e.Kind, e.Name, e.Value, e.Stamp))
	}
	return all
}
