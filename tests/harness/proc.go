package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// clockTick is the unit of times in /proc/PID/stat: 1/100 s on every Linux
// that Go runs on.
const clockTick = 10 * time.Millisecond

// stat returns a field of /proc/PID/stat, numbered from 1 as in proc(5). The field must be
// behind the second one, the name, which can hold blanks.
func (s *Server) stat(field int) int64 {
	s.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.PID()))
	require.NoError(s.t, err)
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	n, err := strconv.ParseInt(fields[field-3], 10, 64)
	require.NoError(s.t, err)
	return n
}

// killForks ends the children that save for the server, and waits until they are gone. They
// would outlive the server. After that nothing writes to its folder.
func (s *Server) killForks() {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.cmd.Process.Pid))
	for _, list := range lists {
		b, _ := os.ReadFile(list)
		for _, text := range strings.Fields(string(b)) {
			pid, err := strconv.Atoi(text)
			if err != nil || syscall.Kill(pid, syscall.SIGKILL) != nil {
				continue
			}
			// The server reaps it. If the server is stopped, the child stays a zombie, and does nothing.
			for range 1000 {
				b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
				if err != nil || strings.Contains(string(b), ") Z ") {
					break
				}
				time.Sleep(time.Millisecond)
			}
		}
	}
}

// CPU is the processor time that the server has used, user and system, in steps
// of 10 ms.
func (s *Server) CPU() time.Duration {
	return time.Duration(s.stat(14)+s.stat(15)) * clockTick
}

// RSS is the server's resident memory in bytes.
func (s *Server) RSS() int64 { return s.stat(24) * int64(os.Getpagesize()) }

// Client is a go-redis client, closed with the test.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), DisableIdentity: true})
	s.t.Cleanup(func() { c.Close() })
	return c
}

// SaveOften makes the server save and rewrite its AOF so many times, and requires that
// each succeeds.
func (s *Server) SaveOften(times int) {
	s.t.Helper()
	for range times {
		s.Save()
		s.RewriteAOF()
	}
}

// Save makes the server save by a BGSAVE, and requires that it succeeds.
func (s *Server) Save() {
	s.t.Helper()
	s.background("BGSAVE", "rdb_bgsave_in_progress", "rdb_last_bgsave_status")
}

// RewriteAOF makes the server write its AOF anew, and requires that it succeeds.
func (s *Server) RewriteAOF() {
	s.t.Helper()
	s.background("BGREWRITEAOF", "aof_rewrite_in_progress", "aof_last_bgrewrite_status")
}

func (s *Server) background(command, busy, status string) {
	s.t.Helper()
	require.Equal(s.t, byte('+'), s.Do(command).Kind)
	Await(s.t, 20*time.Second, command, func() bool {
		return s.Info("persistence", busy)+s.Info("persistence", "aof_rewrite_scheduled") == "00"
	})
	require.Equal(s.t, "ok", s.Info("persistence", status))
}
