#!/usr/bin/env bash
# The slow tests, in two parts. Usage: run_slow.sh PYTHON
# Those that time, or are prompt only on a core of their own, have a core each. The others often wait, for a limit or for
# their turn of the processor.
# A machine at its limits breaks one of five thousand tests now and then. Up to five that failed run once more, alone,
# and the log names them. pytest-xdist itself runs a test again whose process ended.
#
# Root runs them with /tmp in memory, in a mount namespace of their own: they make and delete some hundred thousand
# small files and sync databases, which takes a disk a third of the time. `make test` runs on the disk.
set -uo pipefail
case "$(readlink -f "$0") $PWD $(readlink -f "$1")" in /tmp/* | *" /tmp/"*) TMP_IN_MEMORY=no ;; esac  # would be hidden
if [ "$(id -u)" = 0 ] && [ -z "${TMP_IN_MEMORY:-}" ] && unshare -m mount -t tmpfs tmpfs /tmp 2>/dev/null; then
	export TMP_IN_MEMORY=yes
	exec unshare -m sh -c 'mount -t tmpfs -o mode=1777 tmpfs /tmp && exec "$0" "$@"' "$(readlink -f "$0")" "$@"
fi
python=$1
failed=.pytest_cache/v/cache/lastfailed
timed=(tests/judge tests/cheats tests/hostd/prewarm tests/services/programs/test_kernel_dispatch.py
	tests/test_cli.py tests/bridge/test_notifications.py)
worst=0

run() {
	"$python" -m pytest --dist loadgroup -m "slow and not slurm" --durations=30 "$@"
	local code=$?
	[ $code -le $worst ] || worst=$code
}

rm -f "$failed"
run -n 2 "${timed[@]}"
run -n 4 --ignore=tests/real "${timed[@]/#/--ignore=}"
# 1: tests failed, and nothing else did
[ $worst -eq 1 ] || exit $worst
count=$(cat "$failed" 2>/dev/null | grep -c '::.*: true')
[ "$count" -le 5 ] || { echo "$count tests failed"; exit 1; }
echo "$count failed; once more, alone:"
"$python" -m pytest -v --last-failed --last-failed-no-failures none
code=$?
# 5: none is left to run, as those whose process ended were right when pytest-xdist ran them again. A Python that cannot
# start pytest says 1, here too.
[ $code -ne 5 ] || [ "$count" -ne 0 ] || exit 0
exit $code
