package engine_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/store/storetest"
	"jobmesh/module/wire"
)

// A question to a node that goes, or is forgotten, is answered without it, however long its client would wait.
func TestAQuestionToANodeThatGoes(t *testing.T) {
	for name, goes := range map[string]func(n *engine.Node, id wire.NodeID){
		"ends":         func(n *engine.Node, id wire.NodeID) { n.Mesh().Down(id) },
		"is forgotten": func(n *engine.Node, id wire.NodeID) { n.Mesh().Forget(id); n.Mesh().Down(id) },
		"reset":        func(n *engine.Node, _ wire.NodeID) { n.Reset() },
	} {
		t.Run(name, func(t *testing.T) {
			now := int64(1_700_000_000_000)
			n, _, _ := node(now)
			n.SetFeatures(mate, engine.Features{Counts: true})
			n.Mesh().Up(mate, "10.0.0.1:1", false)
			n.Effects()
			p, answer := n.AskCounts([]byte("q"), 3_600_000)
			require.Nil(t, answer)
			n.Tie(p, "client")
			n.Effects()
			goes(n, mate)
			n.Effects()
			n.SetNow(now + 1)
			n.Tick()
			answers := 0
			for _, e := range n.Effects() {
				if e.Kind == engine.AnswerMesh {
					answers++
					assert.Equal(t, []wire.NodeID{mate}, e.Answer.Unanswered)
				}
			}
			assert.Equal(t, 1, answers)
		})
	}
}

// A node that answers a question late sends the answer to whatever process of the asking node is connected then. So two processes of a node use
// different numbers, and none ignores the answers to its own questions.
func TestAnAnswerForAFormerProcess(t *testing.T) {
	const now = 1_700_000_000_000
	ids := []store.ID{{1, 23: 1}}
	for name, ask := range map[string]func(*engine.Node) (engine.Pending, *engine.MeshAnswer){
		"flush": func(n *engine.Node) (engine.Pending, *engine.MeshAnswer) {
			return n.FlushMesh([]byte("q"), false, 5000)
		},
		"move": func(n *engine.Node) (engine.Pending, *engine.MeshAnswer) {
			return n.MoveMesh([]byte("q"), &engine.Move{To: []byte("r")}, 10, 5000)
		},
		"wait": func(n *engine.Node) (engine.Pending, *engine.MeshAnswer) {
			p, ends := n.WaitJobs(ids, false, 5000)
			if ends == nil {
				return p, nil
			}
			return p, &engine.MeshAnswer{Ends: ends}
		},
	} {
		t.Run(name, func(t *testing.T) {
			begin := func(life uint64) (*engine.Node, wire.Message) {
				n := engine.New(engine.Config{Alloc: storetest.New(), Random: rand.NewPCG(1, life), NodeID: "0123456789abcdef0123456789abcdef01234567", Now: now})
				n.SetFeatures(mate, engine.Features{Flushes: true, Failures: true, Results: true})
				n.Mesh().Up(mate, "10.0.0.1:1", false)
				n.Effects()
				p, answer := ask(n)
				require.Nil(t, answer)
				n.Tie(p, "client")
				for _, e := range n.Effects() {
					var m wire.Message
					if e.Kind == engine.Send && m.Parse(n.Message(&e)) == nil && (m.Kind == wire.AskFlush || m.Kind == wire.AskMove || m.Kind == wire.Watch) {
						return n, m
					}
				}
				t.Fatal("nobody is asked")
				return nil, wire.Message{}
			}
			answers := func(n *engine.Node, asked wire.Message) (count int) {
				m := wire.Message{Span: asked.Span, Round: 7}
				switch asked.Kind {
				case wire.AskFlush:
					m.Kind = wire.Flushed
				case wire.AskMove:
					m.Kind = wire.MovedJobs
				default:
					m.Kind, m.Queue = wire.Ended, append(ids[0][:], 7, 0) // it isn't known
				}
				require.NoError(t, n.Receive(mate, m.Append(nil)))
				for _, e := range n.Effects() {
					if e.Kind == engine.AnswerMesh {
						count++
					}
				}
				return count
			}
			_, first := begin(1)
			n, second := begin(2)
			assert.NotEqual(t, first.Span, second.Span)
			assert.Zero(t, answers(n, first))
			assert.Equal(t, 1, answers(n, second))
		})
	}
}
