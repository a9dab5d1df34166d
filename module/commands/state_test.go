package commands

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestStateFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.state")
	want := lastRun{kind: ranClean, process: 1, changes: 2, inLog: 3, files: [32]byte{4}, held: appendBytes(appendBytes(nil, []byte("record")), nil)}
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
		_, err = parseState(bad)
		assert.Error(t, err, "byte %d", n)
	}
	entries, err := os.ReadDir(filepath.Dir(name))
	require.NoError(t, err)
	assert.Len(t, entries, 1, "nothing else is left in the folder")
	require.NoError(t, removeState(name))
	require.NoError(t, removeState(name), "there is none")
}
