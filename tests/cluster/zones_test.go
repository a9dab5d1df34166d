package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

func (m mesh) awaitZones(t *testing.T, want string) {
	t.Helper()
	for _, s := range m {
		harness.Await(t, 40*time.Second, "the zones to be "+want, func() bool {
			return strings.Contains(s.Do("JOBMESH", "CLUSTER", "INFO").Str, "cluster_zones:"+want+"\r\n")
		})
	}
}

// Copies go to nodes of different zones first, of jobs that are added one by one and together. If no node of another zone takes
// copies, they go to the same one.
func TestZones(t *testing.T) {
	t.Parallel()
	var m mesh
	for _, zone := range []string{"a", "a", "b", "b", "c"} {
		// On a busy machine no node may be missed that is only slow.
		m = append(m, node(t, "jobmesh.zone "+zone, "jobmesh.cluster-node-timeout 20000"))
	}
	m.meet(t)
	m.awaitZones(t, "a=2,b=2,c=1")
	zoneOf := map[string]string{}
	for i, s := range m {
		zoneOf[m.id(i)] = strings.ToLower(s.Do("CONFIG", "GET", "jobmesh.zone").Elems[1].Str)
	}
	// If a node confirms late, another node gets a copy too. So there may be more copies than were asked for.
	holders := func(id string) []string { return m[0].Do("SHOW", id).Field("nodes-delivered").Strings() }
	zones := func(id string) string {
		var all []string
		for _, n := range holders(id) {
			all = append(all, zoneOf[n])
		}
		slices.Sort(all)
		return strings.Join(slices.Compact(all), "")
	}
	c := m[0].Dial()
	for range 20 {
		assert.Equal(t, "abc", zones(added(t, c, "q", "b", 20_000, "REPLICATE", 3)))
		assert.GreaterOrEqual(t, len(zones(added(t, c, "q", "b", 20_000, "REPLICATE", 2))), 2)
	}
	all, refused := promised(t, c.Do(bulk("q 20000 REPLICATE 3", 20)...), "")
	require.Zero(t, refused)
	for _, id := range all {
		assert.Equal(t, "abc", zones(id))
	}
	assert.Len(t, holders(added(t, c, "q", "b", 20_000, "REPLICATE", 5)), 5)

	// A node changes its zone, and one is forgotten.
	require.Equal(t, "OK", m[4].Do("CONFIG", "SET", "jobmesh.zone", "a").Str)
	m.awaitZones(t, "a=3,b=2")
	gone := m.id(3)
	m[3].Kill()
	for _, s := range []*harness.Server{m[0], m[1], m[2], m[4]} {
		require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "FORGET", gone).Str)
	}
	rest := mesh{m[0], m[1], m[2], m[4]}
	rest.awaitZones(t, "a=3,b=1")
	m[2].Kill()
	harness.Await(t, 60*time.Second, "the node to be missed", func() bool { return links(m[0]) == 2 })
	zoneOf[m[4].Do("JOBMESH", "CLUSTER", "MYID").Str] = "a"
	inOne := added(t, c, "q", "b", 20_000, "REPLICATE", 3)
	assert.Equal(t, "a", zones(inOne))
	assert.Len(t, holders(inOne), 3)
	for _, wrong := range []string{"a b", "a,b", "a=b", strings.Repeat("x", 65)} {
		assert.True(t, m[0].Do("CONFIG", "SET", "jobmesh.zone", wrong).Err("ERR"), wrong)
	}
	require.Equal(t, "OK", m[0].Do("CONFIG", "SET", "jobmesh.zone", "").Str)
	mesh{m[0], m[1], m[4]}.awaitZones(t, "a=2,b=1")
}
