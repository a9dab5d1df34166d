package lua

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every file is embedded, under the name that it gives itself.
func TestLibraries(t *testing.T) {
	files, err := filepath.Glob("*.lua")
	require.NoError(t, err)
	assert.Len(t, Libraries(), len(files))
	for _, l := range Libraries() {
		code, err := os.ReadFile(l.Name + ".lua")
		require.NoError(t, err)
		assert.Equal(t, string(code), l.Code)
		assert.True(t, strings.HasPrefix(l.Code, "#!lua name="+l.Name+"\n"))
	}
}
