package lua

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every library begins with its name, and every file is in one of them, once.
func TestLibraries(t *testing.T) {
	all := ""
	for _, l := range Libraries() {
		assert.True(t, strings.HasPrefix(l.Code, "#!lua name="+l.Name+"\n"))
		all += l.Code
	}
	require.NoError(t, filepath.WalkDir(".", func(path string, _ os.DirEntry, err error) error {
		require.NoError(t, err)
		if filepath.Ext(path) == ".lua" {
			code, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, 1, strings.Count(all, string(code)), path)
		}
		return nil
	}))
}
