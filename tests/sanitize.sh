#!/usr/bin/env bash
# Builds modules under the C compiler's sanitizers: AddressSanitizer looks at
# what C and Go do to the server's memory, UndefinedBehaviorSanitizer at the C.
#   sanitize.sh build FILE [go build's flags] PACKAGE
#   sanitize.sh library  what a server must preload to run such a module, so
#                        that its malloc is the sanitizer's; status 3: there is none
#   sanitize.sh test     runs what needs a server under them (make sanitize)
set -euo pipefail
cd "$(dirname "$0")/.."

library() {
  local found
  found=$("${CC:-gcc}" -print-file-name=libasan.so 2>/dev/null || true)
  # A compiler that doesn't find the file prints its name alone.
  if [[ $found != /* ]]; then
    echo "the C compiler has no AddressSanitizer (gcc's libasan.so)" >&2
    exit 3
  fi
  readlink -f "$found"
}

build() { # file, flags and package
  CGO_CFLAGS="-g -O1 -fno-omit-frame-pointer -fsanitize=undefined -fno-sanitize-recover=undefined" \
    CGO_LDFLAGS="-fsanitize=undefined" \
    go build -asan -buildmode=c-shared -o "$1" "${@:2}"
  chmod +x "$1"
}

run() {
  local preload work bad=0
  preload=$(library)
  work=$(mktemp -d)
  # shellcheck disable=SC2064 # now
  trap "rm -rf '$work'" EXIT
  build "$work/jobmesh.so" ./module
  JOBMESH_PRELOAD=$preload JOBMESH_SO=$work/jobmesh.so \
    go test -json -count=1 -timeout 15m ./rm ./tests/single | go run ./tests/tally || bad=1
  return $bad
}

case ${1:-} in
library) library ;;
build) build "${@:2}" ;;
test) run ;;
*) sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2 ;;
esac
