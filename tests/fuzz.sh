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
fuzz() { # number time
  local name package
  read -r name package <<<"${targets[$1]}"
  # Without a limit most of the time goes to making interesting inputs smaller.
  go test -count=1 -parallel 1 "${flags[@]}" -run '^$' -fuzz "^$name\$" -fuzztime "$2" -fuzzminimizetime 1s "$package" >"$work/$1" 2>&1
}
# Before Go 1.27 the end of the time can itself count as a failure, although no input has
# failed (go.dev/issue/75804). Then the fuzzer runs again, with all inputs that were found and
# more, for a number of runs, which has no such end. The lines are bare, or those of -json.
run() { # number
  fuzz "$1" "$time" && return
  if grep -qE '(^|"Output":") +context deadline exceeded($|\\n")' "$work/$1" && ! grep -qE 'Failing input|panic' "$work/$1"; then
    fuzz "$1" 20000x
  else
    return 1
  fi
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
