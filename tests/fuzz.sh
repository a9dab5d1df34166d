#!/usr/bin/env bash
# Runs every fuzzer there is for a time, four at once: fuzz.sh TIME [go test flags].
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
at_once=4
run() { # number
  local name package
  read -r name package <<<"${targets[$1]}"
  go test -count=1 -parallel 1 "${flags[@]}" -run '^$' -fuzz "^$name\$" -fuzztime "$time" "$package" >"$work/$1" 2>&1
}
flags=("$@")
for ((i = 0; i < ${#targets[@]}; i += at_once)); do
  pids=()
  for ((k = i; k < i + at_once && k < ${#targets[@]}; k++)); do
    run "$k" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  # Whole outputs, one after the other: lines of two don't mix.
  for ((k = i; k < i + ${#pids[@]}; k++)); do cat "$work/$k"; done
done
exit $status
