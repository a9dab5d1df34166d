package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
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
