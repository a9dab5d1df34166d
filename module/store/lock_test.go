package store_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"jobmesh/module/store"
	"jobmesh/module/store/storetest"
)

func TestLockNamesAreDistinct(t *testing.T) {
	long, longer := bytes.Repeat([]byte("x"), 300), bytes.Repeat([]byte("x"), 301)
	seen := map[string]string{}
	for _, space := range []store.Space{store.LockBare, store.LockWait, store.LockRun} {
		for _, scope := range [][]byte{nil, {}, []byte("q"), []byte("qk"), long, longer} {
			for _, key := range [][]byte{{}, []byte("k"), []byte("qk"), []byte("kk"), long, longer} {
				name := string(store.AppendLockName(nil, space, scope, key))
				what := fmt.Sprintf("%c %q %q", space, scope, key)
				assert.Empty(t, seen[name], what)
				seen[name] = what
				assert.Less(t, len(name), 600)
			}
		}
	}
}

func TestLocksAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		alloc := storetest.New()
		s := store.New(alloc, 1, 0)
		empty := alloc.Blocks()
		model := map[string]uint64{}
		var floor uint64
		for token := range uint64(rapid.IntRange(1, 500).Draw(t, "steps")) {
			name := fmt.Sprint("L", rapid.IntRange(0, 40).Draw(t, "name"))
			l := s.Lock([]byte(name))
			want, held := model[name]
			require.Equal(t, held, l != nil)
			if held {
				require.Equal(t, want, l.Token)
				require.Equal(t, name, string(l.Name()))
				require.Equal(t, "me", string(l.Owner()))
				require.Equal(t, store.LockBare, l.Space())
				floor = max(floor, l.Token)
				s.RemoveLock(l)
				delete(model, name)
			} else {
				s.NewLock([]byte(name), []byte("me")).Token = token
				model[name] = token
			}
			require.Equal(t, floor, s.Locks().Floor)
			require.Equal(t, len(model), int(s.Locks().Len))
		}
		n := 0
		for l := s.Locks().Head; l != nil; l = l.Next {
			require.Contains(t, model, string(l.Name()))
			n++
		}
		require.Equal(t, len(model), n)
		for s.Locks().Head != nil {
			s.RemoveLock(s.Locks().Head)
		}
		require.Equal(t, empty, alloc.Blocks())
		require.Zero(t, s.Locks().Bytes)
	})
}
