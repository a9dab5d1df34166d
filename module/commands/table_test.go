package commands

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/rm"
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

// A command that doesn't only read is marked so that scripts which may only read (EVAL_RO) can't run it.
func TestScriptsThatOnlyReadChangeNothing(t *testing.T) {
	var check func(name string, c rm.Command)
	check = func(name string, c rm.Command) {
		flags := strings.Fields(c.Flags)
		if c.Run != nil && !slices.Contains(flags, "readonly") {
			assert.True(t, slices.Contains(flags, "write") || slices.Contains(flags, "may-replicate") || slices.Contains(flags, "deny-script"), name)
		}
		for _, s := range c.Sub {
			check(name+" "+s.Name, s)
		}
	}
	for _, c := range New().Commands {
		check(c.Name, c)
	}
}
