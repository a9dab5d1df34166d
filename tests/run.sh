#!/usr/bin/env bash
# Starts a node in the foreground, on $PORT (7711, Disque's, by default). Its
# data lies in .run/, so it is the same node next time.
set -euo pipefail
cd "$(dirname "$0")/.."
port=${PORT:-7711}
mkdir -p .run
cat <<MSG

A jobmesh node starts on port $port; its data lies in $PWD/.run. Try, in another terminal:

  redis-cli -p $port ADDJOB mail 'hello world' 0
  redis-cli -p $port GETJOB FROM mail
  redis-cli -p $port ACKJOB <the ID that GETJOB printed>

Ctrl-C stops it.

MSG
exec redis-server --port "$port" --bind 127.0.0.1 --dir "$PWD/.run" --appendonly yes --loadmodule "$PWD/jobmesh.so"
