package commands

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The reference names every command that is registered.
func TestReferenceIsComplete(t *testing.T) {
	text, err := os.ReadFile("../COMMANDS.md")
	require.NoError(t, err)
	for _, c := range New().Commands {
		assert.NotEmpty(t, c.Info.Summary, c.Name)
		assert.NotZero(t, c.Info.Arity, c.Name)
		assert.True(t, strings.Contains(string(text), strings.ToUpper(c.Name)), c.Name)
		for _, s := range c.Sub {
			assert.True(t, strings.Contains(string(text), strings.ToUpper(c.Name+" "+s.Name)), s.Name)
			assert.NotEmpty(t, s.Info.Summary, s.Name)
		}
	}
	for _, c := range New().Configs {
		assert.True(t, strings.Contains(string(text), "| "+c.Name+" |"), c.Name)
	}
}
