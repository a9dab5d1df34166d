package harness

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// AOF reads the commands in the server's append-only file, without those in a
// base that is an RDB. A last command that is cut off is left out: the server was
// killed, or is writing it now. Anything else that a server couldn't load is an
// error; redis-check-aof lets some of that pass, as a command without arguments.
func (s *Server) AOF() ([][]string, error) {
	folder := filepath.Join(s.Dir, "appendonlydir")
	manifest, err := os.ReadFile(filepath.Join(folder, "appendonly.aof.manifest"))
	if err != nil {
		return nil, err
	}
	var all [][]string
	for line := range strings.Lines(string(manifest)) {
		words := strings.Fields(line) // file NAME seq N type h|b|i
		if len(words) < 6 || words[5] == "h" || strings.HasSuffix(words[1], ".rdb") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, words[1]))
		if errors.Is(err, os.ErrNotExist) {
			continue // the log was written anew meanwhile
		}
		if err != nil {
			return nil, err
		}
		commands, err := logged(text)
		if err != nil {
			return nil, fmt.Errorf("%s: after %d commands: %w", words[1], len(commands), err)
		}
		all = append(all, commands...)
	}
	return all, nil
}

// logged reads the commands of one file.
func logged(text []byte) (all [][]string, err error) {
	r := bufio.NewReader(bytes.NewReader(text))
	for {
		command, err := loggedCommand(r)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		if command != nil {
			all = append(all, command)
		}
	}
}

// loggedCommand reads a command. It returns nil for an annotation.
func loggedCommand(r *bufio.Reader) ([]string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	if line[0] == '#' {
		return nil, nil
	}
	n, err := loggedNumber(line, '*')
	if err == nil && n == 0 {
		err = errors.New("a command without arguments")
	}
	if err != nil {
		return nil, err
	}
	command := make([]string, n)
	for i := range command {
		if line, err = r.ReadString('\n'); err != nil {
			return nil, err
		}
		size, err := loggedNumber(line, '$')
		if err != nil {
			return nil, err
		}
		arg := make([]byte, size+2)
		if _, err := io.ReadFull(r, arg); err != nil {
			return nil, err
		}
		if !bytes.HasSuffix(arg, []byte("\r\n")) {
			return nil, fmt.Errorf("an argument of %d bytes doesn't end there", size)
		}
		command[i] = string(arg[:size])
	}
	return command, nil
}

func loggedNumber(line string, kind byte) (int, error) {
	text, whole := strings.CutSuffix(line, "\r\n")
	if !whole || line[0] != kind {
		return 0, fmt.Errorf("%q is in the place of %c and a number", line, kind)
	}
	n, err := strconv.Atoi(text[1:])
	if err == nil && n < 0 {
		err = fmt.Errorf("%q is negative", line)
	}
	return n, err
}

// LoggedQueue is the queue of [Server.AwaitLogged]'s jobs.
const LoggedQueue = "logged"

// AwaitLogged adds a job and waits until it is in the append-only file. It
// returns the job's ID. The server has to know the job after its next start,
// however it ends, since the kernel has the file's data.
func (s *Server) AwaitLogged() string {
	s.t.Helper()
	mark := fmt.Sprintf("logged-%016x", rand.Uint64())
	v := s.Do("ADDJOB", LoggedQueue, mark, 0, "REPLICATE", 1, "RETRY", 1_000_000, "TTL", 2_000_000)
	require.Equal(s.t, byte('+'), v.Kind, "%v", v)
	Await(s.t, 20*time.Second, "the job that was just added to be in the append-only file", func() bool {
		commands, err := s.AOF()
		require.NoError(s.t, err, "%s: the append-only file", s.Dir)
		return slices.ContainsFunc(commands, func(command []string) bool {
			return command[0] == "LOADJOB" && strings.Contains(command[len(command)-1], mark)
		})
	})
	return v.Str
}

// AwaitMark waits until the state file of a server with appendfsync always has noted
// how far the append-only file goes.
func (s *Server) AwaitMark() {
	s.t.Helper()
	Await(s.t, 10*time.Second, "the log's length to be noted", func() bool { return s.Mark() == int64(len(s.Appended())) })
}

// Mark is how far the append-only file's last file goes, as the state file has noted it; -1: there
// is no such note.
func (s *Server) Mark() int64 {
	state, err := os.ReadFile(filepath.Join(s.Dir, "jobmesh-nodes.state"))
	const mark = 8 + 32 // at its end: the length, and a sum
	if err != nil || len(state) <= mark {
		return -1
	}
	return int64(binary.LittleEndian.Uint64(state[len(state)-mark:]))
}
