// Package migrate tests the functions of lua/jobmesh, which move queues
// between other libraries' key layouts and jobmesh: there and back with all
// bytes the same, under kill -9, refusing what they must; and with the real
// Sidekiq and rq of Debian's packages, which write the data and run the jobs.
// Where setup.sh can't install those, their tests are skipped.
package migrate
