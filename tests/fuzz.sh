#!/usr/bin/env bash
# Runs every fuzzer there is for a time: fuzz.sh TIME [go test flags].
set -euo pipefail
cd "$(dirname "$0")/.."
time=$1
shift
status=0
while IFS=: read -r file _ name; do
  go test -count=1 "$@" -run '^$' -fuzz "^$name\$" -fuzztime "$time" "./$(dirname "$file")" || status=1
done < <(grep -rnoE '^func Fuzz[A-Za-z0-9_]*' --include='*_test.go' . | sed -E 's/:func /:/; s#^\./##')
exit $status
