// Command example is a module written on package rm that has nothing to do with queues: it
// has counters, as a data type of their own. It is built with -buildmode=c-shared, and
// loaded like any module.
package main

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"jobmesh/rm"
)

var counter = rm.NewFlatType("counter-t", 1, "COUNTER.RESTORE")

func init() {
	key := []rm.KeySpec{{Flags: rm.KeyModify, Position: 1, Step: 1}}
	rm.Register(&rm.Module{
		Name:    "counter",
		Version: 1,
		Types:   []*rm.DataType{&counter.DataType},
		Commands: []rm.Command{
			{Name: "counter.add", Flags: "write fast", Run: add, Info: rm.Info{Summary: "Adds to a counter.", Arity: 3, Keys: key}},
			{Name: "counter.restore", Flags: "write", Run: restore, Info: rm.Info{Summary: "Sets a counter from an AOF.", Arity: 3, Keys: key}},
			{Name: "counter.take", Flags: "write blocking", Run: take, Ready: taken, Key: 1, Type: &counter.DataType, Info: rm.Info{Summary: "Removes a counter and tells its value, waiting for one.", Arity: -3,
				Keys: []rm.KeySpec{{Flags: rm.KeyModify, Position: 1, Last: -2, Step: 1}}}},
			{Name: "counter.later", Flags: "blocking", Run: later, Info: rm.Info{Summary: "Answers from a goroutine, some milliseconds later.", Arity: 2}},
			{Name: "counter.busy", Flags: "fast", Run: busy, Info: rm.Info{Summary: "Keeps goroutines and the collector busy.", Arity: 2}},
			{Name: "counter.post", Flags: "blocking", Run: post, Info: rm.Info{Summary: "Has goroutines post messages to the main thread.", Arity: 2}},
			{Name: "counter.panic", Flags: "fast", Run: func(*rm.Ctx) { panic("asked for") }, Info: rm.Info{Summary: "Panics."}},
			{Name: "counter.panics", Flags: "fast", Run: func(c *rm.Ctx) { c.Int(c.Server().Panics()) }, Info: rm.Info{Summary: "Counts panics."}},
			{Name: "counter.short", Flags: "fast", Run: short, Info: rm.Info{Summary: "Lets clients say COUNT, and UP for one more, or no longer.", Arity: 2}},
			{Name: "counter.may", Flags: "fast", Run: may, Info: rm.Info{Summary: "Tells who may run a command: the client, and the module.", Arity: -2}},
			{Name: "counter.gopanic", Flags: "fast", Run: func(c *rm.Ctx) {
				c.Server().Go(func() { panic("in a goroutine") })
				c.Simple("OK")
			}, Info: rm.Info{Summary: "Panics in a goroutine."}},
		},
	})
}

func add(c *rm.Ctx) {
	n, err := strconv.ParseInt(string(c.Arg(2)), 10, 64)
	if err != nil {
		c.Error("ERR value is not an integer or out of range")
		return
	}
	value, err := counter.Value(c, c.ArgString(1))
	if err != nil {
		c.Error(err.Error())
		return
	}
	if value == nil {
		value = counter.New(8)
		if err := counter.Set(c, c.ArgString(1), value); err != nil {
			c.Error("ERR " + err.Error())
			return
		}
	}
	b := counter.Bytes(value)
	sum := int64(binary.LittleEndian.Uint64(b)) + n
	binary.LittleEndian.PutUint64(b, uint64(sum))
	c.Int(sum)
	c.Dirty()
}

func take(c *rm.Ctx) {
	last := c.NArgs() - 1
	ms, err := strconv.ParseUint(string(c.Arg(last)), 10, 16)
	if err != nil || !c.CanBlock() {
		c.Error("ERR a number of milliseconds is needed, and a client that can wait")
		return
	}
	if _, err := c.Held(); err != nil {
		c.Error(err.Error())
		return
	}
	if taken(c) {
		return
	}
	if err := c.BlockOnKeys(1, last-1, int64(ms)); err != nil {
		c.Error("ERR " + err.Error())
	}
}

// taken serves a call, or a client that waits. It panics if the value is 13.
func taken(c *rm.Ctx) bool {
	value, err := c.Held()
	if err != nil || value == nil {
		return false
	}
	n := int64(binary.LittleEndian.Uint64(counter.Bytes(value)))
	if n == 13 {
		panic("thirteen")
	}
	c.Int(n)
	c.Remove(c.Key())
	c.Dirty()
	return true
}

func short(c *rm.Ctx) {
	var rules []rm.Rewrite
	if string(c.Arg(1)) == "yes" {
		rules = []rm.Rewrite{
			{From: "COUNT", More: 2, To: "COUNTER.ADD"},
			{From: "UP one", To: "COUNTER.ADD n 1"},
			{From: "COUNT up in steps", More: -1, To: "COUNTER.ADD"},
		}
	}
	if err := c.Server().SetRewrites(rules); err != nil {
		c.Error("ERR " + err.Error())
		return
	}
	c.Simple("OK")
}

func may(c *rm.Ctx) {
	var words []string
	for i := 1; i < c.NArgs(); i++ {
		words = append(words, string(c.Arg(i)))
	}
	answer := int64(0)
	if may, _ := c.MayRun(words...); may {
		answer = 1
	}
	if words[0] == "again" {
		c.Int(answer)
		return
	}
	module, err := c.Server().Call("COUNTER.MAY", "again")
	if err != nil {
		c.Error("ERR " + err.Error())
		return
	}
	c.Array(2)
	c.Int(answer)
	c.Text(module)
}

func restore(c *rm.Ctx) {
	value := counter.New(len(c.Arg(2)))
	copy(counter.Bytes(value), c.Arg(2))
	if err := counter.Set(c, c.ArgString(1), value); err != nil {
		c.Error("ERR " + err.Error())
		return
	}
	c.Simple("OK")
	c.Dirty()
}

func later(c *rm.Ctx) {
	ms, err := strconv.ParseUint(string(c.Arg(1)), 10, 16)
	if err != nil || !c.CanBlock() {
		c.Error("ERR a number of milliseconds is needed, and a client that can wait")
		return
	}
	client, err := c.Block(0, func(c *rm.Ctx, gone bool) {
		if !gone {
			c.Null()
		}
	})
	if err != nil {
		c.Error("ERR " + err.Error())
		return
	}
	s := c.Server()
	s.Go(func() {
		time.Sleep(time.Duration(ms) * time.Millisecond)
		s.Post(func(*rm.Server) { client.Answer(func(c *rm.Ctx) { c.Text("now") }, nil) })
	})
}

// post waits for its goroutines, so that all their messages are pending at once. A real
// command must never do that. It answers how many messages ran on the main thread, and how
// many calls into C it took to post them.
func post(c *rm.Ctx) {
	n, err := strconv.Atoi(string(c.Arg(1)))
	if err != nil || n < 0 || n > 100 || !c.CanBlock() {
		c.Error("ERR a number from 0 to 100 is needed, and a client that can wait")
		return
	}
	client, err := c.Block(0, func(*rm.Ctx, bool) {})
	if err != nil {
		c.Error("ERR " + err.Error())
		return
	}
	s, here, before, ran := c.Server(), syscall.Gettid(), runtime.NumCgoCall(), int64(0)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for range 100 {
				s.Post(func(*rm.Server) {
					if syscall.Gettid() == here {
						ran++
					}
				})
			}
		})
	}
	all.Wait()
	calls := runtime.NumCgoCall() - before
	s.Post(func(*rm.Server) {
		client.Answer(func(c *rm.Ctx) {
			c.Array(2)
			c.Int(ran)
			c.Int(calls)
		}, nil)
	})
}

func busy(c *rm.Ctx) {
	n, err := strconv.Atoi(string(c.Arg(1)))
	if err != nil || n < 0 || n > 100 {
		c.Error("ERR a number from 0 to 100 is needed")
		return
	}
	for range n {
		c.Server().Go(func() {
			var keep [64][]byte
			for i := 0; ; i++ {
				keep[i%len(keep)] = make([]byte, rand.IntN(1<<14))
				if i%1000 == 0 {
					runtime.GC()
				}
			}
		})
	}
	c.Simple("OK")
}

func main() {}
