// Package compat tests what jobmesh is beside others: with
// jobmesh.disque-compat yes, Disque under its own command names.
package compat
