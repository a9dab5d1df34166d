// Command demo shows one job's life on a real server: added, fetched by a
// worker that crashes, delivered again, acknowledged.
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

func show() error {
	dir, err := os.MkdirTemp("", "jobmesh-demo")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	addr := l.Addr().(*net.TCPAddr)
	l.Close()
	so, err := filepath.Abs("jobmesh.so")
	if err != nil {
		return err
	}
	server := exec.Command("redis-server", "--port", fmt.Sprint(addr.Port), "--bind", "127.0.0.1", "--dir", dir,
		"--logfile", filepath.Join(dir, "log"), "--save", "", "--loadmodule", so)
	if err := server.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		server.Wait()
		close(ended)
	}()
	defer func() {
		server.Process.Kill()
		<-ended
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client := func() *redis.Client {
		return redis.NewClient(&redis.Options{Addr: addr.String(), Protocol: 2, DisableIdentity: true})
	}
	c := client()
	defer c.Close()
	for c.Ping(ctx).Err() != nil {
		select {
		case <-ended:
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			return fmt.Errorf("the server ended:\n%s", log)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	fmt.Printf("A node runs on %s.\n\n", addr)

	id, err := c.Do(ctx, "ADDJOB", "mail", "welcome ann", 0, "RETRY", 1).Text()
	if err != nil {
		return err
	}
	fmt.Printf("> ADDJOB mail \"welcome ann\" 0 RETRY 1\n  %s\n  If nobody acknowledges the job within a second of its delivery, it comes again.\n\n", id)

	worker := client()
	first, err := fetch(ctx, worker)
	if err != nil {
		return err
	}
	fmt.Printf("A worker fetches it:\n> GETJOB WITHCOUNTERS FROM mail\n  %v\n\nThe worker crashes: its connection is gone, and no ACKJOB came.\n\n", first)
	worker.Close()

	began := time.Now()
	again, err := fetch(ctx, c)
	if err != nil {
		return err
	}
	fmt.Printf("Another worker has waited %.1f s in GETJOB, and gets it:\n> GETJOB WITHCOUNTERS FROM mail\n  %v\n\n", time.Since(began).Seconds(), again)
	if again[1] != id || again[6] != int64(1) {
		return errors.New("that is not the same job, delivered once more")
	}

	n, err := c.Do(ctx, "ACKJOB", id).Int()
	if err != nil {
		return err
	}
	fmt.Printf("It is done:\n> ACKJOB %s\n  %d\n\n", id, n)
	if err := c.Do(ctx, "SHOW", id).Err(); n != 1 || !errors.Is(err, redis.Nil) {
		return errors.New("the job is still there")
	}
	fmt.Println("> SHOW", id, "\n  (nil)\n\nNothing of it is left.")
	return nil
}

// fetch waits for a job: queue, ID, body and the two counters.
func fetch(ctx context.Context, c *redis.Client) ([]any, error) {
	jobs, err := c.Do(ctx, "GETJOB", "TIMEOUT", 5000, "WITHCOUNTERS", "FROM", "mail").Slice()
	if err != nil {
		return nil, err
	}
	job, ok := jobs[0].([]any)
	if !ok || len(job) != 7 {
		return nil, fmt.Errorf("unexpected reply %v", jobs)
	}
	return job, nil
}
