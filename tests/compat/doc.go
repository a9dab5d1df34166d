// Package compat tests compatibility: with jobmesh.disque-compat yes, jobmesh has
// Disque's command names; without it, no stock command behaves differently. The
// latter test compares two servers, one of them without the module, reply by
// reply. It leaves out what differs between any two servers, each case with its
// reason.
package compat
