#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_words.sh: words that docs/words.md has retired have not come back, and the words it explains are all still used.
set -eu

cd "${DP_TEST_SRCDIR:-$(dirname "$0")/../..}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
everywhere="include libdualpipe plugins conform tools apps examples python docs tests bench README.md CONTRIBUTING.md SECURITY.md"

find_in() { # PATTERN PLACES...
    pattern=$1
    shift
    grep -rnHE --include='*.[ch]' --include='*.cu' --include='*.cuh' --include='*.inc' --include='*.md' --include='*.1' \
        --include='*.py' --include='*.sh' --include='Makefile.*' --exclude=words.md --exclude=check_words.sh --exclude-dir=frozen \
        --exclude-dir=corpus -e "$pattern" "$@" || true
}

# | `pattern` | say | places |; a bar inside the pattern is written \|
sed -n '/^| retired/,$p' docs/words.md | sed 's/\\|/\a/g' | awk -F' *[|] *' 'NR > 2 && NF >= 5 { print $2; print $3; print $4 }' |
    tr '\a' '|' >"$work/retired"
test "$(wc -l <"$work/retired")" -ge 80 || { echo "docs/words.md has no table of retired words"; exit 1; }
while read -r pattern && read -r say && read -r places; do
    pattern=${pattern#\`}
    pattern=${pattern%\`}
    test "$places" != everywhere || places=$everywhere
    # shellcheck disable=SC2086 # places are several
    find_in "$pattern" $places >"$work/found"
    if [ -s "$work/found" ]; then
        cat "$work/found"
        echo "^ say: $say (docs/words.md)"
        failures=$((failures + 1))
    fi
done <"$work/retired"

# | word, word | meaning |; operations, which are capital letters, are not searched for
sed -n '/^| word /,/^$/p' docs/words.md | awk -F' *[|] *' 'NR > 2 && $2 !~ /^[A-Z]/ { n = split($2, word, /, /); for (i = 1; i <= n; i++) print word[i] }' |
    sed '/^$/d; s/ /[ _-]/g' >"$work/words"
test "$(wc -l <"$work/words")" -ge 28 || { echo "docs/words.md explains too few words"; exit 1; }
while read -r word; do
    if ! grep -rqiwE -- "$word" include libdualpipe; then
        echo "docs/words.md explains \"$word\", which no header and no source says"
        failures=$((failures + 1))
    fi
done <"$work/words"
exit $((failures > 0))
