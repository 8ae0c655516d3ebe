#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_environment.sh: every DUALPIPE_ variable that the product reads or sets is in the manual page's ENVIRONMENT, and no
# other; they are at most 16. Every key of DUALPIPE_DEBUG is in CONTRIBUTING.md, and no other.
set -eu

cd "$DP_TEST_SRCDIR"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() {
    echo "$*"
    failures=$((failures + 1))
}
sources() { # a deadline of comm_cuda_ipc's own goes
    find libdualpipe plugins tools apps conform examples python/src \( -name '*.[ch]' -o -name '*.cu' -o -name '*.py' \) -exec cat {} + |
        grep -v DUALPIPE_IPC_DEADLINE_SECONDS
}

sed -n '/^\.SH ENVIRONMENT/,/^\.SH FILES/s/^\.BI \(DUALPIPE_[A-Z_]*\)=.*/\1/p' docs/dualpipe.1 | sort >"$work/documented"
sources | grep -oE '(getenv|setenv|environ\.get|dp__environment_[a-z]*|setting|number_from)\("DUALPIPE_[A-Z_]+|[A-Z]+ +"DUALPIPE_[A-Z_]+"' |
    sed 's/.*"\(DUALPIPE_[A-Z_]*\).*/\1/' | sort -u >"$work/read"
[ "$(wc -l <"$work/read")" -ge 10 ] || fail "only $(wc -l <"$work/read") variables were found in the sources"
[ "$(wc -l <"$work/documented")" -le 16 ] || fail "$(wc -l <"$work/documented") variables are documented for users; at most 16"
diff "$work/read" "$work/documented" >"$work/differences" ||
    fail "variables of the sources (<) and of the manual page (>): $(cat "$work/differences")"

sed -n '/^## Settings for developers/,/^## Commits/s/^| \(`[^|]*\) |.*/\1/p' CONTRIBUTING.md | tr -d '` ' | tr ',' '\n' | sort >"$work/keys"
sources | grep -oE '"(lib|nccl|ipc|ofi|moe_cuda|attention_cuda|cudnn)\.[a-z_]+"|"DUALPIPE_DEBUG", "[a-z]+"' |
    sed 's/.*"\([a-z._]*\)"$/\1/' | grep -v '\.h$' | sort -u >"$work/used"
[ "$(wc -l <"$work/used")" -ge 10 ] || fail "only $(wc -l <"$work/used") keys were found in the sources"
diff "$work/used" "$work/keys" >"$work/differences" ||
    fail "keys of the sources (<) and of CONTRIBUTING.md (>): $(cat "$work/differences")"

# DUALPIPE_ is nowhere said of a variable that does not exist.
grep -rhoE 'DUALPIPE_[A-Z_]*[A-Z]\>' docs README.md include libdualpipe plugins tools apps conform examples tests bench --include='*.md' \
    --include='*.[ch]' --include='*.sh' --include='*.cu' --include='*.1' --exclude-dir=frozen | grep -vE '_H$|^DUALPIPE_IPC_DEADLINE_SECONDS$' | sort -u |
    comm -23 - "$work/documented" >"$work/unknown"
[ ! -s "$work/unknown" ] || fail "variables that do not exist: $(cat "$work/unknown")"

echo "$failures failures"
[ "$failures" -eq 0 ]
