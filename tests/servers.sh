#!/usr/bin/env bash
# Fetches other releases of the server from Debian's archive, so that the module
# can be tested on them, and prints each one's name and the script that starts
# it. Nothing is installed: each server lies in a folder of the cache with its
# own C library, and starts through that library's loader. "servers.sh test"
# runs the tests on each (make test-servers).
#   JOBMESH_SERVERS  the cache folder
#   JOBMESH_MIRROR   the archive's address; apt's own Debian mirror by default
#   JOBMESH_ONLY     words: only these servers
set -euo pipefail
cd "$(dirname "$0")/.."

# Name, suites, package without -server, version. Archives drop versions when
# they get newer ones: change the line then. apt checks signatures and hashes.
# Redict, a fork of Redis 7.2, stands for that release, which Debian never had.
table='
redict-7.3.6  bookworm,bookworm-backports  redict  7.3.6+*
valkey-8.0.1  bookworm,bookworm-backports  valkey  8.0.1+*
redis-8.0.2   trixie                       redis   5:8.0.2-*
valkey-8.1.1  trixie                       valkey  8.1.1+*
redis-8.6.3   sid,experimental             redis   5:8.6.3-*
valkey-9.1.2  sid                          valkey  9.1.2-*
'

cache=${JOBMESH_SERVERS:-${XDG_CACHE_HOME:-$HOME/.cache}/jobmesh/servers}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { echo "servers.sh: $*" >&2; }

mirror() {
  local found
  found=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep -m 1 -E '/debian/?$' || true)
  found=${JOBMESH_MIRROR:-$found}
  [ -n "$found" ] || { say "apt's sources name no Debian archive: set JOBMESH_MIRROR to the address of one"; return 1; }
  echo "$found"
}

# apt with its own sources and state. Other settings, as proxies, are the machine's.
apt() { # suites program arguments
  local dir="$work/$1" program=$2
  shift 2
  LC_ALL=C "apt-$program" -qq -o Dir::State="$dir" -o Dir::State::status="$dir/status" -o Dir::Cache="$dir" \
    -o Dir::Etc::sourcelist="$dir/sources" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::Etc::preferences="$dir/preferences" -o Dir::Etc::preferencesparts=/dev/null \
    -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=2 -o Acquire::http::Timeout=30 "$@"
}

update() { # suites; once for each
  local dir="$work/$1" keyring=/usr/share/keyrings/debian-archive-keyring.gpg suite from
  [ -e "$dir/updated" ] && return
  mkdir -p "$dir/lists/partial" "$dir/archives/partial"
  : >"$dir/status"
  : >"$dir/preferences"
  from=$(mirror) || return 1
  for suite in ${1//,/ }; do
    echo "deb $([ -e $keyring ] && echo "[signed-by=$keyring]") $from $suite main"
  done >"$dir/sources"
  say "reading $from ($1)"
  apt "$1" get -o APT::Update::Error-Mode=any update >&2 || return 1
  touch "$dir/updated"
}

# The libraries that packages need, and in turn the libraries that those need.
libraries() { # suites packages
  local suites=$1 queue=("${@:2}") all=' ' p
  while [ ${#queue[@]} -gt 0 ]; do
    p=${queue[0]}
    queue=("${queue[@]:1}")
    for p in $(apt "$suites" cache depends --important "$p" | sed -nE 's/^ *(Pre)?Depends: ((lib|zlib)[^ ]*)$/\2/p'); do
      [[ $all == *" $p "* ]] && continue
      all+="$p "
      queue+=("$p")
    done
  done
  echo "$all"
}

fetch() { # name suites package version
  local name=$1 suites=$2 packages=("$3-server" "$3-tools") version=$4 there loader dir="$work/$1"
  update "$suites" || { say "$name: the archive's index can't be read"; return 1; }
  printf 'Package: %s\nPin: version %s\nPin-Priority: 1001\n' "${packages[*]}" "$version" >"$work/$suites/preferences"
  there=$(apt "$suites" cache policy "${packages[0]}" | sed -nE 's/^ *Candidate: //p')
  # shellcheck disable=SC2053 # a pattern
  if [[ $there != $version ]]; then
    say "$name: the archive has no such version, it has ${there:-none}"
    return 1
  fi
  say "$name: fetching $3 $there"
  mkdir -p "$dir/debs"
  # shellcheck disable=SC2046 # words
  (cd "$dir/debs" && apt "$suites" get download "${packages[@]}" $(libraries "$suites" "${packages[@]}") >&2) ||
    { say "$name: can't be downloaded"; return 1; }
  for deb in "$dir"/debs/*.deb; do dpkg-deb -x "$deb" "$dir" || return 1; done
  rm -r "$dir/debs"
  loader=$(find "$dir" -name 'ld-linux*.so*' | head -n 1)
  [ -n "$loader" ] || { say "$name: no loader in its libc6"; return 1; }
  cat >"$dir/server" <<SCRIPT
#!/bin/sh
# $3 $there
here=\${0%/*}
paths=
for d in "\$here"/lib/*-linux-gnu* "\$here"/usr/lib/*-linux-gnu*; do paths=\$paths:\$d; done
exec "\$here/${loader#"$dir"/}" --library-path "\${paths#:}" "\$here/usr/bin/$3-server" "\$@"
SCRIPT
  chmod +x "$dir/server"
  "$dir/server" --version >/dev/null || { say "$name: doesn't start here"; return 1; }
  rm -rf "${cache:?}/$name"
  mv "$dir" "$cache/$name"
}

servers=()
while read -r name suites package version; do
  [ -n "$name" ] || continue
  [ -z "${JOBMESH_ONLY:-}" ] || [[ " $JOBMESH_ONLY " == *" $name "* ]] || continue
  if [ ! -x "$cache/$name/server" ]; then
    command -v apt-get >/dev/null || { say "$name: not in $cache, and there is no apt-get to fetch it"; continue; }
    fetch "$name" "$suites" "$package" "$version" || { say "$name: left out"; continue; }
  fi
  servers+=("$name")
done <<<"$table"
if [ ${#servers[@]} -eq 0 ]; then
  say "there is no server to test on"
  exit 1
fi
if [ "${1:-}" != test ]; then
  for name in "${servers[@]}"; do echo "$name $cache/$name/server"; done
  exit 0
fi
{
  bad=0
  for name in "${servers[@]}"; do
    echo "== $name"
    JOBMESH_SERVER="$cache/$name/server" go test -json -count=1 -timeout 20m ./rm ./tests/single ./tests/cluster ./tests/compat ./tests/migrate || bad=1
  done
  exit $bad
} | go run ./tests/tally
