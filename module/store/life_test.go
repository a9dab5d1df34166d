package store_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/store"
)

// I6: extras that are cut off, too long, or of a wrong form are refused. (Each parser has a fuzzer: FuzzParse, FuzzLoad, FuzzJobFromRecord, …)
func TestLifeI6(t *testing.T) {
	var extras []byte
	ends := map[int]bool{0: true}
	for tag := store.TagFamily; tag < 40; tag++ {
		switch tag {
		case store.TagAsleep, store.TagPriority, store.TagSlots, store.TagEnd:
			continue
		}
		extras = store.AppendExtra(extras, tag, []byte{1, 2, 3, 4, 5})
		ends[len(extras)] = true
	}
	extras = store.AppendExtra(extras, store.TagPriority, store.PriorityValue(7))
	ends[len(extras)] = true
	require.NoError(t, store.CheckExtras(extras))
	for n := range extras {
		err := store.CheckExtras(extras[:n])
		assert.Equal(t, ends[n], err == nil, "cut at byte %d: %v", n, err)
	}
	for tag, bad := range map[store.Tag][]byte{
		store.TagUnique: {1}, store.TagAsleep: {9, 9}, store.TagPriority: {101}, store.TagSlots: {1, 2}, store.TagEnd: {1, 2, 3},
	} {
		assert.Error(t, store.CheckExtras(store.AppendExtra(nil, tag, bad)), "tag %d", tag)
		assert.Error(t, store.CheckExtras(append(extras[:len(extras):len(extras)], store.AppendExtra(nil, tag, bad)...)), "tag %d at the end", tag)
	}
	assert.Error(t, store.CheckExtras(make([]byte, store.MaxExtras+3)))
}
