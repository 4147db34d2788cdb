#!/bin/bash
# Runs every fuzz target for DURATION: build/fuzz.sh [DURATION]. A failing input is
# written to testdata/fuzz of its package, and is a test case from then on.
set -euo pipefail
duration=${1:-10s}

failed=0
while read -r package; do
	while read -r target; do
		echo "== $package $target"
		# Go spends up to a minute on minimising one interesting input; a second
		# is enough here.
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$duration" -fuzzminimizetime 1s "./$package" || failed=1
	done < <(grep -hoP '^func \KFuzz\w+' "$package"/*_test.go)
done < <(grep -lrE '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sed 's|^\./||' | sort -u)
exit "$failed"
