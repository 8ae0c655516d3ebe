# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# faults.sh, read by check_*_faults.sh of kernels: a plugin without a fault passes its suite, and each of the faults that
# tests/mock/*_faults.sed write into it is caught by the case that the table names (another may catch it as well).
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failures=0

complain() {
    echo "$*"
    cat "$log"
    failures=$((failures + 1))
}

# suite, plugin, fault (none: all has to be well), cases
try() {
    suite=$1 plugin=$2 fault=$3
    shift 3
    status=0
    MOCK_FAULT=$fault ${TEST_WRAPPER:-} "$DP_TEST_BUILDDIR/tests/conform/test_conform_$suite" \
        --plugin "$DP_TEST_MOCKS/$plugin.so" "$@" >"$log" 2>&1 || status=$?
    if [ "$fault" = none ]; then
        [ $status -eq 0 ] || complain "$plugin without a fault does not pass:"
    elif [ $status -ne 1 ] || ! grep -q "^FAILED  $1" "$log"; then
        complain "$1 does not catch $fault in $plugin:"
    fi
}

# KIND [SUITE]: each fault of the sed script has to be in the table below.
table() {
    kind=$1 of=${2:-$1}
    known=$(grep -o 'fault("[a-z_]*")' "$DP_TEST_SRCDIR/tests/mock/${kind}_faults.sed" | sort -u | cut -d'"' -f2)
    try "$of" "mock_${kind}_faults" none
    tried=
    while read -r fault case; do
        try "$of" "mock_${kind}_faults" "$fault" "$case"
        tried="$tried $fault"
    done
    for fault in $known; do
        case "$tried " in *" $fault "*) ;; *) complain "nobody tries the fault $fault of $kind" ;; esac
    done
}
