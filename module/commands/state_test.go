package commands

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"fmt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"hash/crc32"
	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"strings"
)

func TestStateFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.state")
	for _, want := range []lastRun{
		{kind: ranClean, process: 1, changes: 2, inLog: 3, files: aofSum{4}, held: appendBytes(appendBytes(nil, []byte("record")), nil)},
		{kind: ranSynced, process: 1, files: aofSum{4}, held: []byte{}, mark: logMark{5, aofSum{6}}, rewrite: rewrite{7, 8}},
	} {
		require.NoError(t, want.write(name))
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		got, err := parseState(b)
		require.NoError(t, err)
		assert.Equal(t, &want, got)
		for n := range b {
			_, err := parseState(b[:n])
			assert.Error(t, err, "cut at %d", n)
			bad := append([]byte(nil), b...)
			bad[n] ^= 0x10
			if got, err = parseState(bad); want.kind == ranSynced && n >= markAt {
				require.NoError(t, err)
				assert.NotEqual(t, want.mark, got.mark, "it is the log that it doesn't fit, byte %d", n)
			} else {
				assert.Error(t, err, "byte %d", n)
			}
		}
	}
	later := logMark{7, aofSum{8}}
	require.NoError(t, later.note(name))
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	got, err := parseState(b)
	require.NoError(t, err)
	assert.Equal(t, &lastRun{kind: ranSynced, process: 1, inode: got.inode, files: aofSum{4}, held: []byte{}, mark: later, rewrite: rewrite{7, 8}}, got)
	entries, err := os.ReadDir(filepath.Dir(name))
	require.NoError(t, err)
	assert.Len(t, entries, 1, "nothing else is left in the folder")
	require.NoError(t, removeState(name))
	require.NoError(t, removeState(name), "there is none")
	require.Error(t, later.note(name), "it makes none")
}

// A damaged line about votes in the nodes' file is refused. With one digit changed, the node would
// vote while somebody may still hold a lock by a vote that the node has lost.
func TestVarsOfTheNodesFile(t *testing.T) {
	const line = "vars longest-lease 65536 unleased yes new no"
	want := lock.Votes{Longest: lock.LeasesUpTo(65536), Unleased: true}
	for text, fits := range map[string]bool{
		line: true, // a former release's
		fmt.Sprintf("%s sum %08x", line, crc32.ChecksumIEEE([]byte(line))):                                  true,
		fmt.Sprintf("%s sum %08x", strings.Replace(line, "6", "0", 1), crc32.ChecksumIEEE([]byte(line))):    false,
		fmt.Sprintf("%s sum %08x", strings.Replace(line, "yes", "no", 1), crc32.ChecksumIEEE([]byte(line))): false,
		fmt.Sprintf("%s sum %08x", line, crc32.ChecksumIEEE([]byte(line))^1):                                false,
	} {
		v, _, err := parseVars(strings.Fields(text))
		if fits {
			require.NoError(t, err, text)
			assert.Equal(t, want, v, text)
		} else {
			assert.ErrorIs(t, err, errVarsDamaged, text)
		}
	}
	v, _, err := parseVars(strings.Fields("vars longest-lease 65536 unleased yes new no leases 5120,6144,65536"))
	require.NoError(t, err)
	assert.Equal(t, lock.Votes{Longest: lock.Leases{5120, 6144, 65536}, Unleased: true}, v)
	_, _, err = parseVars(strings.Fields("vars longest-lease 65536 unleased yes new no leases 5120"))
	assert.Error(t, err)
}

// Deletions are remembered over a restart, in their order. A line that can't be read is ignored.
func TestDeletionsInTheNodesFile(t *testing.T) {
	for _, d := range []engine.Deletions{
		{All: 7},
		{All: 0, Queues: []engine.QueueDeleted{{Name: 1, UpTo: 2}}},
		{All: math.MaxUint64, Queues: []engine.QueueDeleted{{Name: math.MaxUint64, UpTo: 1}, {Name: 5, UpTo: math.MaxUint64}}},
	} {
		f := strings.Fields(deletionsText(d))
		assert.NotEqual(t, 6, len(f), "a former release takes six for a node")
		assert.Equal(t, d, parseDeletions(f))
	}
	assert.Empty(t, deletionsText(engine.Deletions{}))
	for _, text := range []string{"deleted", "deleted 1 2 3 4 5", "deleted x y", "deleted -1 zz:1,1:zz,1,:,"} {
		d := parseDeletions(strings.Fields(text))
		assert.Zero(t, d.All, text)
		assert.Empty(t, d.Queues, text)
	}
}
