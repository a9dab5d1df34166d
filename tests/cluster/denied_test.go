package cluster

import (
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// fullDisk lets a server's append-only file grow no more, and makes it notice that.
func fullDisk(t *testing.T, s *harness.Server) {
	t.Helper()
	require.Equal(t, "OK", s.Do("SET", "large", strings.Repeat("x", 200_000)).Str) // no other file of the server is as large
	files, err := filepath.Glob(filepath.Join(s.Dir, "appendonlydir", "*.incr.aof"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	info, err := os.Stat(files[0])
	require.NoError(t, err)
	limit := syscall.Rlimit{Cur: uint64(info.Size()), Max: uint64(info.Size())}
	_, _, failed := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(s.PID()), syscall.RLIMIT_FSIZE, uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	require.Zero(t, failed)
	harness.Await(t, 10*time.Second, "the server to refuse writes", func() bool { return strings.HasPrefix(s.Do("SET", "more", "x").Str, "MISCONF") })
}

// A server that refuses its own clients' writes takes no copies of other nodes' jobs, and no at-most-once jobs: it would promise what is on no disk.
func TestServersThatRefuseWritesTakeNoCopies(t *testing.T) {
	signal.Ignore(syscall.SIGXFSZ) // servers inherit that: a write fails, and ends no process
	for name, deny := range map[string]func(t *testing.T, s *harness.Server){
		"the disk is full": fullDisk,
		"no replica": func(t *testing.T, s *harness.Server) {
			require.Equal(t, "OK", s.Do("CONFIG", "SET", "min-replicas-to-write", 1).Str)
		},
		"no RDB file": func(t *testing.T, s *harness.Server) {
			file := filepath.Join(s.Dir, "dump.rdb")
			os.Remove(file)
			require.NoError(t, os.Mkdir(file, 0o700))
			require.Equal(t, "OK", s.Do("CONFIG", "SET", "save", "3600 1").Str)
			s.Do("BGSAVE")
			harness.Await(t, 10*time.Second, "the save to fail", func() bool { return s.Info("persistence", "rdb_last_bgsave_status") == "err" })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := start(t, 2, "appendonly yes", "appendfsync everysec")
			a, denied := m[0], m[1]
			waits := denied.Dial()
			waits.Send("GETJOB", "FROM", "once")
			deny(t, denied)
			harness.Await(t, 10*time.Second, "the node to refuse copies", func() bool {
				return strings.HasPrefix(a.Do("ADDJOB", "q", "b", 300, "REPLICATE", 2).Str, "NOREPL")
			})
			assert.Contains(t, denied.Log(), "takes no copies")
			require.Equal(t, "OK", a.Do("JOBMESH", "CLUSTER", "LEAVING", "yes").Str)
			assert.Equal(t, byte('-'), a.Do("ADDJOB", "q", "b", 300).Kind, "nobody can keep it")
			require.Equal(t, "OK", a.Do("JOBMESH", "CLUSTER", "LEAVING", "no").Str)
			id := added(t, a.Dial(), "once", "b", 0, "RETRY", 0)
			assert.True(t, waits.Silent(700*time.Millisecond), "it stays where it is on disk")
			assert.Equal(t, id, a.Do("GETJOB", "FROM", "once").Elems[0].Elems[1].Str)
			if name != "no replica" {
				return
			}
			require.Equal(t, "OK", denied.Do("CONFIG", "SET", "min-replicas-to-write", 0).Str)
			harness.Await(t, 10*time.Second, "the node to take copies", func() bool { return a.Do("ADDJOB", "q", "b", 300, "REPLICATE", 2).Kind == '+' })
		})
	}
}
