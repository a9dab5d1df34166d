package engine_test

import (
	"testing"

	"jobmesh/module/lock/locktest"
)

// playLife plays the scripts of a numbered scenario, which only the mesh shows.
func playLife(t *testing.T, scripts ...string) {
	for _, name := range scripts {
		locktest.Run(t, func() *locktest.World { return newWorld().World }, "testdata/"+name+".txt")
	}
}

// F8: no job dies undelivered, however long a partition lasts. The histories "failing" of the simulator check it, too.
func TestLifeF8(t *testing.T) { playLife(t, "undelivered_for_an_hour") }

// D8: dead on one side of a partition, done on the other: gone everywhere. Dead on both: there once.
func TestLifeD8(t *testing.T) { playLife(t, "dead_there_done_here", "dead_twice") }
