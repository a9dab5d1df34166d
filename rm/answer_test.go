package rm

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"jobmesh/cgo/api"
)

// A client that went away while its answer was awaited: another waits by then, and
// the server's handle of that one lies where the first one's did.
func TestAnswerIsForItsOwnClient(t *testing.T) {
	s := &Server{blocked: map[api.Blocked]*Client{}}
	var handle int
	gone, waits := &Client{s: s, b: api.Blocked(&handle)}, &Client{s: s, b: api.Blocked(&handle)}
	s.blocked[waits.b] = waits
	gone.Answer(func(*Ctx) { t.Error("another client's answer") }, nil)
	assert.Same(t, waits, s.blocked[waits.b])
}
