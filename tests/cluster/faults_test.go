package cluster

import (
	"math/rand/v2"
	"testing"
)

// some is so many random nodes.
func (m mesh) some(n int) mesh {
	out := make(mesh, n)
	for i, k := range rand.Perm(len(m))[:n] {
		out[i] = m[k]
	}
	return out
}

func (m mesh) kill() {
	for _, s := range m {
		s.Kill()
	}
}

func (m mesh) restart() {
	for _, s := range m {
		s.Launch()
	}
	for _, s := range m {
		s.AwaitService()
	}
}

func TestTotalQueueKilled(t *testing.T) {
	t.Parallel()
	m := start(t, nodes, durable...)
	q := newQueue(t, m, 3000, "REPLICATE", 3, "RETRY", 1)
	for range 3 {
		q.more(300)
		dead := m.some(2)
		dead.kill()
		q.more(300)
		dead.restart()
	}
	m.await(t, nodes)
	q.more(300)
	q.finish()
}

func TestTotalQueueStopped(t *testing.T) {
	t.Parallel()
	m := start(t, nodes)
	q := newQueue(t, m, 3000, "REPLICATE", 3, "RETRY", 1)
	for range 3 {
		q.more(300)
		still := m.some(2)
		still.stop()
		q.more(300)
		still.resume()
	}
	m.await(t, nodes)
	q.more(300)
	q.finish()
}

func TestTotalQueueAllRestarted(t *testing.T) {
	t.Parallel()
	m := start(t, nodes, durable...)
	q := newQueue(t, m, 3000, "REPLICATE", 3, "RETRY", 1)
	for range 2 {
		q.more(500)
		m.kill()
		m.restart()
	}
	m.await(t, nodes)
	q.more(500)
	q.finish()
}
