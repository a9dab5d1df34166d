// Package clients tests clients from other people's registries as they are,
// pinned by package-lock.json, against a server with jobmesh.disque-compat yes:
// Disque's clients do what their own pages show, and one for Redis alone works
// beside them. Without node, npm or the registry the tests are skipped.
package clients
