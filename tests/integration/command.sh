# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# command.sh: what the scripts that run the dualpipe command share; they read it with ".". $subcommand: put behind dualpipe in
# every call ("trace"), may be empty. They run in an empty folder, $work, which goes with them.

dualpipe=$DP_TEST_BUILDDIR/dualpipe
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
failures=0

fail() {
    echo "$*"
    failures=$((failures + 1))
}
expect() { # STATUS ARGUMENTS...: leaves the files out and err
    wanted=$1
    shift
    status=0
    "$dualpipe" $subcommand "$@" >out 2>err </dev/null || status=$?
    [ "$status" -eq "$wanted" ] ||
        fail "dualpipe $subcommand $*: exit code $status, $wanted was expected: $(head -c 900 out) $(cat err)"
    if [ "$wanted" -ne 0 ] && [ ! -s err ] && [ -z "${quiet_failures:-}" ]; then
        fail "dualpipe $subcommand $*: nothing on standard error"
    fi
}
require() { # FILE PATTERN
    grep -q -e "$2" "$1" || fail "\"$2\" is not in $1: $(head -c 900 "$1")"
}
head_is() { # FILE TEXT
    [ "$(head -c ${#2} "$1" | tr -d '\0')" = "$2" ] || fail "$1 does not begin with $2"
}
finish() {
    echo "$failures failures"
    [ "$failures" -eq 0 ]
}
