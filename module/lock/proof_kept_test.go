package lock_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/lock"
	"jobmesh/module/lock/locktest"
)

// A node that may have lost the end of its log has more votes than one call marks as kept. Others tell it their whole tables before that walk
// has ended. A vote that a whole table has told is marked all the same, and dropped when the node knows enough. Then another owner gets the lock.
func TestKeptVoteThatWasConfirmedStays(t *testing.T) {
	for _, others := range []int{10, 3500} {
		script := []string{"mesh nodes=3 remembers", "cut a b"}
		for i := range others {
			script = append(script, fmt.Sprintf("acquire c f%05d o lease=7200s", i), "deliver quiet")
		}
		script = append(script, "acquire a zz h1 lease=7200s", "deliver quiet", "join a b", "deliver quiet", "advance 1s deliver quiet",
			"crash c", "restart c distrust", "deliver quiet", "advance 5s deliver quiet", "crash a", "acquire b zz h2 lease=7200s", "deliver quiet")
		path := filepath.Join(t.TempDir(), "kept.txt")
		require.NoError(t, os.WriteFile(path, []byte(strings.Join(script, "\n----\n\n")+"\n----\n"), 0o600))
		was := flag.Lookup("rewrite").Value.String()
		require.NoError(t, flag.Set("rewrite", "true"))
		locktest.Run(t, func() *locktest.World { return newWorld(func(any, *lock.Result) {}) }, path)
		require.NoError(t, flag.Set("rewrite", was))
		played, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, strings.Contains(string(played), "answers h1: granted"))
		assert.False(t, strings.Contains(string(played), "answers h2: granted"), "with %d other locks, two owners have the lock", others)
	}
}
