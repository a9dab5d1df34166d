#!/usr/bin/env bash
# Runs every fuzzer there is for a time, two at once: fuzz.sh TIME [go test flags].
set -euo pipefail
cd "$(dirname "$0")/.."
time=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
targets=()
while IFS=: read -r file _ name; do
  targets+=("$name ./$(dirname "$file")")
done < <(grep -rnoE '^func Fuzz[A-Za-z0-9_]*' --include='*_test.go' . | sed -E 's/:func /:/; s#^\./##')
status=0
run() { # number
  local name package
  read -r name package <<<"${targets[$1]}"
  go test -count=1 -parallel 1 "${flags[@]}" -run '^$' -fuzz "^$name\$" -fuzztime "$time" "$package" >"$work/$1" 2>&1
}
flags=("$@")
for ((i = 0; i < ${#targets[@]}; i += 2)); do
  run "$i" &
  first=$!
  second=
  if ((i + 1 < ${#targets[@]})); then
    run "$((i + 1))" &
    second=$!
  fi
  wait "$first" || status=1
  # Whole outputs, one after the other: lines of two don't mix.
  cat "$work/$i"
  if [ -n "$second" ]; then
    wait "$second" || status=1
    cat "$work/$((i + 1))"
  fi
done
exit $status
