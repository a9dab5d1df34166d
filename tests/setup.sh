#!/usr/bin/env bash
# Sees to what jobmesh needs beside Go: a C compiler (the module is Go through
# cgo) and redis-server (to load it). As root it installs what is missing,
# otherwise it prints the command that would.
set -euo pipefail
missing=()
why=()
need() { # command package reason
  command -v "$1" >/dev/null 2>&1 && return
  missing+=("$2")
  why+=("$2: $3")
}
need "${CC:-gcc}" gcc "compiles the C half of the module"
need redis-server redis-server "the server that loads the module"
need redis-cli redis-tools "to try it by hand"
[ -e /usr/include/stdlib.h ] || { missing+=(libc6-dev); why+=("libc6-dev: the C library's headers"); }
if ! command -v go >/dev/null 2>&1; then
  echo "jobmesh is written in Go: install Go 1.26 or newer first (https://go.dev/doc/install)." >&2
  exit 1
fi
[ ${#missing[@]} -eq 0 ] && exit 0
echo "jobmesh needs what is not on this machine yet:"
printf '  %s\n' "${why[@]}"
if [ "$(id -u)" -ne 0 ]; then
  echo "Install it with:  sudo apt-get update && sudo apt-get install -y ${missing[*]}" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
