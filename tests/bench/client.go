package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// server is the redis-server under test.
type server struct {
	cmd  *exec.Cmd
	addr string
	dir  string
}

// start starts a server; more are arguments of the module.
func start(more ...string) (*server, error) { return startBuild("jobmesh.so", more...) }

// startBuild starts a server with a build of the module.
func startBuild(file string, more ...string) (*server, error) {
	dir, err := os.MkdirTemp("", "jobmesh-bench")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().(*net.TCPAddr)
	l.Close()
	so, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	binary := os.Getenv("JOBMESH_SERVER")
	if binary == "" {
		binary = "redis-server"
	}
	s := &server{addr: addr.String(), dir: dir}
	args := []string{"--port", strconv.Itoa(addr.Port), "--bind", "127.0.0.1", "--dir", dir, "--save", "",
		"--logfile", filepath.Join(dir, "log"), "--slowlog-log-slower-than", "1000", "--slowlog-max-len", "1000", "--loadmodule", so}
	s.cmd = exec.Command(binary, append(args, more...)...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // however the bench ends; main keeps the thread that starts it
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	for range 500 {
		if c, err := dial(s.addr); err == nil {
			c.Close()
			return s, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	log, _ := os.ReadFile(filepath.Join(dir, "log"))
	s.stop()
	return nil, fmt.Errorf("the server doesn't start (is jobmesh.so built?):\n%s", log)
}

func (s *server) stop() {
	s.cmd.Process.Kill()
	s.cmd.Wait()
	os.RemoveAll(s.dir)
}

// cpu is the time that all of the server's threads have run. The kernel counts
// it in nanoseconds there, and in hundredths of a second in /proc/PID/stat.
func (s *server) cpu() time.Duration {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", s.cmd.Process.Pid))
	check(err)
	var sum time.Duration
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has just ended
		}
		first, _, _ := strings.Cut(string(b), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		check(err)
		sum += time.Duration(ns)
	}
	return sum
}

// conn speaks just enough of the protocol, and cheaply: the client shares the
// machine with the server.
type conn struct {
	net.Conn
	r *bufio.Reader
	w *bufio.Writer
}

func dial(addr string) (*conn, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &conn{c, bufio.NewReaderSize(c, 64<<10), bufio.NewWriterSize(c, 64<<10)}, nil
}

func (c *conn) send(args ...string) {
	c.w.WriteByte('*')
	c.w.WriteString(strconv.Itoa(len(args)))
	c.w.WriteString("\r\n")
	for _, a := range args {
		c.w.WriteByte('$')
		c.w.WriteString(strconv.Itoa(len(a)))
		c.w.WriteString("\r\n")
		c.w.WriteString(a)
		c.w.WriteString("\r\n")
	}
}

// receive reads one reply and appends its strings to out.
func (c *conn) receive(out []string) ([]string, error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return out, err
	}
	kind, rest := line[0], line[1:len(line)-2]
	switch kind {
	case '-':
		return out, fmt.Errorf("server: %s", rest)
	case '+', ':':
		return append(out, string(rest)), nil
	}
	n, err := strconv.Atoi(string(rest))
	if err != nil || n < 0 {
		return out, err
	}
	if kind == '$' {
		b := make([]byte, n+2)
		if _, err := io.ReadFull(c.r, b); err != nil {
			return out, err
		}
		return append(out, string(b[:n])), nil
	}
	for ; n > 0; n-- {
		if out, err = c.receive(out); err != nil {
			return out, err
		}
	}
	return out, nil
}

func (c *conn) do(args ...string) []string {
	c.send(args...)
	check(c.w.Flush())
	out, err := c.receive(nil)
	check(err)
	return out
}

// each runs ops calls over the connections, pipeline at a time. make writes call i, and
// take gets its reply.
func each(conns []*conn, ops, pipeline int, make func(c *conn, who, i int) int, take func(who, i int, reply []string) error) {
	var wg sync.WaitGroup
	for who, c := range conns {
		wg.Go(func() {
			var reply []string
			lo, hi := who*ops/len(conns), (who+1)*ops/len(conns)
			for i := lo; i < hi; i += pipeline {
				end := min(i+pipeline, hi)
				calls := 1
				for k := i; k < end; k++ {
					calls = make(c, who, k)
				}
				check(c.w.Flush())
				for k := i; k < end; k++ {
					reply = reply[:0]
					for range calls {
						var err error
						reply, err = c.receive(reply)
						check(err)
					}
					check(take(who, k, reply))
				}
			}
		})
	}
	wg.Wait()
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
