#!/usr/bin/env bash
# The slow tests, in three parts. Usage: run_slow.sh PYTHON
# Those that time have a core each, and often wait, as a candidate that is looked at stands still. What they leave of
# the cores goes to some that only compute, at the lowest priority: whoever times comes first. The others often wait as
# well, for a limit or for their turn of the processor.
# A machine at its limits breaks one of five thousand tests now and then. Up to five that failed run once more, alone,
# and the log names them. pytest-xdist itself runs a test again whose process ended.
set -uo pipefail
python=$1
slow=(-m pytest --dist loadgroup -m "slow and not slurm" --durations=30)
timed=(tests/judge tests/cheats)
computing=(tests/knowledge tests/nccl tests/toolchains)
# two write no cache at once: who ended last would forget what the other one saw fail
cache=.pytest_cache aside=.pytest_cache/computing
worst=0

note() { [ "$1" -le $worst ] || worst=$1; }

failed_in() { cat "$1/v/cache/lastfailed" 2>/dev/null | grep -c '::.*: true'; }

# Once more, alone, what failed by a cache.
again() {
	"$python" -m pytest -o cache_dir="$1" -v --last-failed --last-failed-no-failures none
	local code=$?
	# 5: none is left to run, as those whose process ended were right when pytest-xdist ran them again. A Python that
	# cannot start pytest says 1, here too.
	[ $code -ne 5 ] || [ "$(failed_in "$1")" -ne 0 ] || code=0
	return $code
}

rm -f {$cache,$aside}/v/cache/lastfailed
said=$(mktemp)
{
	# compiled once ahead, not by each of three workers that begin at once
	nice -n 19 "$python" -m pytest -o cache_dir=$aside --collect-only -qq >/dev/null
	nice -n 19 "$python" "${slow[@]}" -o cache_dir=$aside -n 1 "${computing[@]}"
} >"$said" 2>&1 &
"$python" "${slow[@]}" -n 2 "${timed[@]}"
note $?
others=("${timed[@]}" "${computing[@]}" tests/real)
"$python" "${slow[@]}" -n 3 "${others[@]/#/--ignore=}"
note $?
wait $!
note $?
cat "$said"
rm "$said"
# 1: tests failed, and nothing else did
[ $worst -eq 1 ] || exit $worst
count=$(($(failed_in $cache) + $(failed_in $aside)))
[ "$count" -le 5 ] || { echo "$count tests failed"; exit 1; }
echo "$count failed; once more, alone:"
worst=0
again $cache
note $?
again $aside
note $?
exit $worst
