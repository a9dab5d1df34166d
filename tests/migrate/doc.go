// Package migrate tests the functions of lua/jobmesh, which move queues between
// other libraries' key layouts and jobmesh: they move queues there and back with
// all bytes the same, also under kill -9, and refuse what they must. It also tests
// them with the real Sidekiq and rq of Debian's packages, which write the data and
// run the jobs. If setup.sh can't install these, their tests are skipped.
package migrate
