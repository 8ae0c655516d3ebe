# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# say.sh: what the scripts share that compile and run programs; they read it with ".".

: "${CC:=cc}"
scale=${DUALPIPE_TIMEOUT_SCALE:-1}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
failures=0
flags="-O1 -Wall -Wextra -Werror ${CFLAGS-}" # CFLAGS: what sanitizers need

complain() {
    echo "FAILED: $*"
    tail -n 20 "$work/log" 2>/dev/null | cut -c 1-300 | sed 's/^/    /'
    failures=$((failures + 1))
}
quietly() { # WHAT COMMAND...: its output only when it fails
    what=$1
    shift
    if "$@" >"$work/log" 2>&1 </dev/null; then
        echo "ok: $what"
    else
        complain "$what: exit status $?"
        return 1
    fi
}
finish() {
    echo "$failures failures"
    [ "$failures" -eq 0 ]
}
