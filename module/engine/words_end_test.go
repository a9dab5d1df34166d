package engine_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Two nodes may count a job differently, and each may have it anywhere: the messages that they send each other about that end.
func TestWordsAboutAJobEnd(t *testing.T) {
	type has struct {
		place             string
		nacks, deliveries uint16
	}
	var all []has
	for _, place := range []string{"queue", "client", "elsewhere"} {
		for nacks := range uint16(3) {
			for deliveries := range uint16(3) {
				all = append(all, has{place, nacks, deliveries})
			}
		}
	}
	words := map[string]uint8{"queued": 0, "in hands": wire.InHands, "kept": wire.Kept, "kept in hands": wire.Kept | wire.InHands, "nack": wire.CountNack, "came back": wire.CountMore}
	m := newTwoNodes(t)
	m.pass(2000, 100)
	for i := range 2 * len(all) {
		first, former := all[i/2], i%2 == 0
		for _, second := range all {
			for word, flags := range words {
				m.nodes[0].Reset()
				m.nodes[1].Reset()
				for i, n := range m.nodes {
					n.SetFeatures(m.nodes[1-i].Self(), engine.Features{Returns: !former})
					n.Mesh().Up(m.nodes[1-i].Self(), "10.0.0.1:1", true)
				}
				m.deliver()
				id, _, err := m.nodes[0].AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Async: true, Retry: 3600, TTL: 86400})
				require.NoError(t, err)
				m.deliver()
				for i, h := range []has{first, second} {
					n := m.nodes[i]
					n.SetNow(m.now)
					if h.place == "elsewhere" {
						n.Dequeue(&id)
					} else {
						n.Enqueue(&id)
					}
					if h.place == "client" {
						require.Len(t, n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, false, nil), 1)
					}
					n.Effects() // the other node hears only the message
					j := n.Job(&id)
					j.Nacks, j.Deliveries = h.nacks, h.deliveries
				}
				name := fmt.Sprintf("%s from %v to %v, former release: %v", word, first, second, former)
				from := m.nodes[0].Job(&id)
				w := wire.Message{Kind: wire.Queued, Flags: flags, ID: wire.JobID(id)}
				w.SetReturns(from.Nacks, from.Deliveries)
				w.Returns.Told = !former
				require.NoError(t, m.nodes[1].Receive(m.nodes[0].Self(), w.Append(nil)))
				require.LessOrEqual(t, m.words(10), 6, name)
			}
		}
	}
}

// words delivers messages until none is left, or the limit is reached, and counts them.
func (m *twoNodes) words(most int) (count int) {
	for any := true; any && count < most; {
		any = false
		for i, n := range m.nodes {
			var sent [][]byte
			for _, e := range n.Effects() {
				if e.Kind == engine.Send {
					sent = append(sent, bytes.Clone(n.Message(&e)))
				}
			}
			for _, b := range sent {
				require.NoError(m.t, m.nodes[1-i].Receive(n.Self(), b))
				any = true
				count++
			}
		}
	}
	return count
}
