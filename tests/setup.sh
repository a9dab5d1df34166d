#!/usr/bin/env bash
# Checks for what jobmesh needs beside Go: a C compiler (the module is Go through
# cgo) and redis-server (to load it). As root it installs what is missing.
# Otherwise it prints the command that installs it.
set -euo pipefail
check_version() { # Redis 7.0 is the first release whose modules can do what jobmesh needs
  local version
  version=$(redis-server --version | sed -nE 's/.* v=([0-9]+)\..*/\1/p')
  [ "${version:-0}" -ge 7 ] && return
  echo "jobmesh needs Redis 7.0 or newer (or Valkey 8), and this is: $(redis-server --version)" >&2
  echo "Newer packages: https://redis.io/docs/latest/operate/oss_and_stack/install/" >&2
  exit 1
}
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
if [ ${#missing[@]} -eq 0 ]; then
  check_version
  exit 0
fi
echo "jobmesh needs what is not on this machine yet:"
printf '  %s\n' "${why[@]}"
if [ "$(id -u)" -ne 0 ]; then
  echo "Install it with:  sudo apt-get update && sudo apt-get install -y ${missing[*]}" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
check_version
