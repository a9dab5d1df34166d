#!/usr/bin/env bash
# Installs the libraries that the tests use, from Debian's packages: as root where
# they are missing. Exits 3, with the reason, where they can't be had.
#   setup.sh sidekiq | rq
set -euo pipefail
case $1 in
  sidekiq)
    packages=(ruby-sidekiq ruby-redis)
    there() { /usr/bin/ruby -e 'require "sidekiq/api"' 2>/dev/null; }
    ;;
  rq)
    packages=(python3-rq)
    there() { /usr/bin/python3 -c 'import rq' 2>/dev/null; }
    ;;
  *) exit 2 ;;
esac
unfit() {
  echo "$1, so $2 isn't tested" >&2
  exit 3
}
there && exit 0
command -v apt-get >/dev/null 2>&1 || unfit "${packages[*]} can't be installed without apt-get" "$1"
[ "$(id -u)" -eq 0 ] || unfit "${packages[*]} can't be installed but by root (apt-get install ${packages[*]})" "$1"
export DEBIAN_FRONTEND=noninteractive
options=(-qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=1 -o Acquire::http::Timeout=20)
{
  apt-get "${options[@]}" install -y --no-install-recommends "${packages[@]}" ||
    { apt-get "${options[@]}" update && apt-get "${options[@]}" install -y --no-install-recommends "${packages[@]}"; }
} >/dev/null 2>&1 || unfit "${packages[*]} can't be installed here" "$1"
there || unfit "${packages[*]} don't work here" "$1"
