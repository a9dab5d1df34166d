// Command module is jobmesh: built with -buildmode=c-shared it is the file for
// redis.conf's loadmodule line.
//
// The packages: commands has the commands and ties them to the server, engine
// is the state machine without I/O, store the memory that both work on, unique
// the unique queues. wire has the messages between nodes, bus carries them. Every
// exchange with the server goes through package rm. busy.go and misuse.go are built for
// tests alone.
package main

import (
	"jobmesh/module/commands"
	"jobmesh/rm"
)

func init() { rm.Register(commands.New()) }

func main() {}
