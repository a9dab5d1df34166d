package engine

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzReadWork checks that another node's message about its work in progress may have any content.
func FuzzReadWork(f *testing.F) {
	f.Add([]byte{})
	f.Add(append(make([]byte, 24), 2, 4, 1, 3, 'a', 'd', 'a'))
	f.Add(append(make([]byte, 24), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := readWork(b, 1_700_000_000_000)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(list), MaxMeshWIP)
		for _, w := range list {
			require.LessOrEqual(t, len(w.Worker), MaxWorker)
		}
	})
}

func TestReadWork(t *testing.T) {
	list, err := readWork(append(make([]byte, 24), 20, 10, 2, 3, 'a', 'd', 'a'), 1000)
	require.NoError(t, err)
	assert.Equal(t, []InProgress{{Due: 1010, Since: 995, Deliveries: 2, Worker: "ada"}}, list)
	for _, b := range [][]byte{{1}, make([]byte, 24), make([]byte, 26), append(make([]byte, 24), 2, 2, 1, 5, 'x')} {
		_, err := readWork(b, 0)
		assert.Error(t, err)
	}
}
