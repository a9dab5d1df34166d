// Command demo shows one job's life in a mesh of three real servers: added on
// one, which is killed; fetched on another by a worker that crashes; delivered
// again, and acknowledged on the third.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	if err := show(); err != nil {
		fmt.Fprintln(os.Stderr, "the demo failed:", err)
		os.Exit(1)
	}
}

// node is one server.
type node struct {
	*redis.Client
	addr    *net.TCPAddr
	busPort int
	cmd     *exec.Cmd
	ended   chan struct{}
	log     string
}

func freePort() (*net.TCPAddr, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr), nil
}

func start(ctx context.Context, dir string) (*node, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	addr, err := freePort()
	if err != nil {
		return nil, err
	}
	busAddr, err := freePort()
	if err != nil {
		return nil, err
	}
	so, err := filepath.Abs("jobmesh.so")
	if err != nil {
		return nil, err
	}
	n := &node{addr: addr, busPort: busAddr.Port, ended: make(chan struct{}), log: filepath.Join(dir, "log")}
	n.cmd = exec.Command("redis-server", "--port", fmt.Sprint(addr.Port), "--bind", "127.0.0.1", "--dir", dir,
		"--logfile", n.log, "--save", "", "--loadmodule", so, "cluster-port", fmt.Sprint(n.busPort))
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		n.cmd.Wait()
		close(n.ended)
	}()
	n.Client = redis.NewClient(&redis.Options{Addr: addr.String(), Protocol: 2, DisableIdentity: true, MaxRetries: -1})
	err = n.await(ctx, func() bool { return n.Ping(ctx).Err() == nil })
	if err != nil {
		n.kill()
		return nil, err
	}
	return n, nil
}

func (n *node) kill() {
	n.Close()
	n.cmd.Process.Kill()
	<-n.ended
}

// await waits for a condition, as long as the server lives.
func (n *node) await(ctx context.Context, done func() bool) error {
	for !done() {
		select {
		case <-n.ended:
			log, _ := os.ReadFile(n.log)
			return fmt.Errorf("the server ended:\n%s", log)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func show() error {
	dir, err := os.MkdirTemp("", "jobmesh-demo")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var nodes []*node
	for i := range 3 {
		n, err := start(ctx, filepath.Join(dir, fmt.Sprint(i+1)))
		if err != nil {
			return err
		}
		defer n.kill()
		nodes = append(nodes, n)
	}
	a, b, c := nodes[0], nodes[1], nodes[2]
	fmt.Printf("Three nodes run, on %s, %s and %s. Two of them meet the first:\n\n", a.addr, b.addr, c.addr)
	for _, n := range nodes[1:] {
		if err := n.Do(ctx, "JOBMESH", "CLUSTER", "MEET", "127.0.0.1", a.addr.Port, a.busPort).Err(); err != nil {
			return err
		}
		fmt.Printf("%d> JOBMESH CLUSTER MEET 127.0.0.1 %d %d\n  OK\n\n", n.addr.Port, a.addr.Port, a.busPort)
	}
	for _, n := range nodes {
		err := n.await(ctx, func() bool {
			hello, err := n.Do(ctx, "JOBMESH", "HELLO").Slice()
			return err == nil && len(hello) == 5 && reachable(hello)
		})
		if err != nil {
			return err
		}
	}

	id, err := a.Do(ctx, "ADDJOB", "mail", "welcome ann", 5000, "REPLICATE", 3, "RETRY", 1).Text()
	if err != nil {
		return err
	}
	fmt.Printf("%d> ADDJOB mail \"welcome ann\" 5000 REPLICATE 3 RETRY 1\n  %s\n  All three hold it now. If nobody acknowledges it within a second, it comes again.\n\n", a.addr.Port, id)
	a.kill()
	fmt.Printf("The first node is killed (-9).\n\n")

	worker := redis.NewClient(&redis.Options{Addr: b.addr.String(), Protocol: 2, DisableIdentity: true})
	first, err := fetch(ctx, worker)
	if err != nil {
		return err
	}
	fmt.Printf("A worker on the second node gets it:\n%d> GETJOB WITHCOUNTERS FROM mail\n  %v\n\nThe worker crashes: its connection is gone, and no ACKJOB came.\n\n", b.addr.Port, first)
	worker.Close()

	began := time.Now()
	again, err := fetch(ctx, b.Client)
	if err != nil {
		return err
	}
	fmt.Printf("Another worker has waited %.1f s in GETJOB, and gets it:\n%d> GETJOB WITHCOUNTERS FROM mail\n  %v\n\n", time.Since(began).Seconds(), b.addr.Port, again)
	if first[1] != id || again[1] != id || again[6].(int64) <= first[6].(int64) {
		return errors.New("that is not the same job, delivered once more")
	}

	n, err := c.Do(ctx, "ACKJOB", id).Int()
	if err != nil {
		return err
	}
	if n != 1 {
		return errors.New("the third node doesn't know the job")
	}
	fmt.Printf("It is done, as the third node is told:\n%d> ACKJOB %s\n  %d\n\n", c.addr.Port, id, n)
	// The first node can't hear of it yet. The others remember it until the first node returns.
	gone := func() bool {
		waiting, err := b.Do(ctx, "QLEN", "mail").Int()
		state, err2 := b.Do(ctx, "SHOW", id).Slice()
		return err == nil && waiting == 0 && (errors.Is(err2, redis.Nil) || err2 == nil && len(state) > 5 && state[5] == "acked")
	}
	if err := b.await(ctx, gone); err != nil {
		return fmt.Errorf("the second node hasn't heard of it: %w", err)
	}
	fmt.Println("The second node knows, and the first will be told when it returns: the job is never delivered again.")
	return nil
}

// reachable says whether a reply to HELLO shows all nodes as connected.
func reachable(hello []any) bool {
	for _, e := range hello[2:] {
		if n, ok := e.([]any); !ok || len(n) != 4 || n[3] != "1" {
			return false
		}
	}
	return true
}

// fetch waits for a job: queue, ID, body and the two counters.
func fetch(ctx context.Context, c *redis.Client) ([]any, error) {
	jobs, err := c.Do(ctx, "GETJOB", "TIMEOUT", 9000, "WITHCOUNTERS", "FROM", "mail").Slice()
	if err != nil {
		return nil, err
	}
	job, ok := jobs[0].([]any)
	if !ok || len(job) != 7 {
		return nil, fmt.Errorf("unexpected reply %v", jobs)
	}
	return job, nil
}
