// Package compat tests what jobmesh is beside others: with
// jobmesh.disque-compat yes, Disque under its own command names; without it, a
// server on which no stock command behaves differently. The latter compares
// two servers, one of them without the module, reply by reply; what differs
// between any two servers is left out, each case with its reason.
package compat
