#!/usr/bin/env bash
# Builds modules under the C compiler's sanitizers: AddressSanitizer looks at
# what C and Go do to the server's memory, UndefinedBehaviorSanitizer at the C.
#   sanitize.sh build FILE [go build's flags] PACKAGE
#   sanitize.sh preload FOLDER  prints the libraries that a server must preload to run such
#                               a module, so that its malloc is the sanitizer's. It puts a
#                               library of its own into the folder. Status 3: there is none
#   sanitize.sh test  runs the tests that need a server under the sanitizers (make sanitize)
set -euo pipefail
cd "$(dirname "$0")/.."

preload() { # folder
  local cc=${CC:-gcc} found=
  if echo 'int main(void) { return 0; }' | "$cc" -x c -fsanitize=address,undefined -o "$1/probe" - 2>/dev/null; then
    found=$(ldd "$1/probe" | sed -nE 's/.*libasan\.so.* => (\/[^ ]*) .*/\1/p')
  fi
  if [ -z "$found" ]; then
    echo "the C compiler has no sanitizers that can be preloaded (gcc with libasan and libubsan)" >&2
    exit 3
  fi
  "$cc" -O1 -Wall -Wextra -Werror -shared -fPIC -o "$1/sanitize.so" tests/sanitize.c -ldl
  echo "$1/sanitize.so:$found"
}

build() { # file, flags and package
  CGO_CFLAGS="-g -O1 -fno-omit-frame-pointer -fsanitize=undefined -fno-sanitize-recover=undefined" \
    CGO_LDFLAGS="-fsanitize=undefined" \
    go build -asan -buildmode=c-shared -o "$1" "${@:2}"
  chmod +x "$1"
}

run() {
  local libraries work bad=0
  work=$(mktemp -d)
  # shellcheck disable=SC2064 # now
  trap "rm -rf '$work'" EXIT
  libraries=$(preload "$work")
  build "$work/jobmesh.so" ./module
  JOBMESH_PRELOAD=$libraries JOBMESH_SO=$work/jobmesh.so \
    go test -json -count=1 -timeout 15m ./rm ./tests/single | go run ./tests/tally || bad=1
  return $bad
}

case ${1:-} in
preload) preload "$2" ;;
build) build "${@:2}" ;;
test) run ;;
*) sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2 ;;
esac
