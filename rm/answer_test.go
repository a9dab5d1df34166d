package rm

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"jobmesh/cgo/api"
)

// A client goes away while its answer is awaited. Another client waits by then, and the server's
// handle of it lies where the first one's did. The first one's answer isn't given to it.
func TestAnswerIsForItsOwnClient(t *testing.T) {
	s := &Server{blocked: map[api.Blocked]*Client{}}
	var handle int
	gone, waits := &Client{s: s, b: api.Blocked(&handle)}, &Client{s: s, b: api.Blocked(&handle)}
	s.blocked[waits.b] = waits
	gone.Answer(func(*Ctx) { t.Error("another client's answer") }, nil)
	assert.Same(t, waits, s.blocked[waits.b])
}
