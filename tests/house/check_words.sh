#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_words.sh: words that docs/words.md has retired have not come back, and the words it explains are all still used.
set -eu

cd "$DP_TEST_SRCDIR"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# | `pattern` | say | places |; a bar inside the pattern is written \|
sed -n '/^| retired/,$p' docs/words.md | sed 's/\\|/\a/g' | awk -F' *[|] *' 'NR > 2 && NF >= 5 { print $2; print $3; print $4 }' |
    tr '\a' '|' >"$work/retired"
test "$(wc -l <"$work/retired")" -ge 24 || { echo "docs/words.md has no table of retired words"; exit 1; }
while read -r pattern && read -r say && read -r places; do
    pattern=${pattern#\`}
    # shellcheck disable=SC2086 # places are several
    if grep -rnE --include='*.[ch]' --include='*.cu' --include='*.md' --exclude=words.md -e "${pattern%\`}" $places; then
        echo "^ say: $say (docs/words.md)"
        failures=$((failures + 1))
    fi
done <"$work/retired"

sed -n '/^| word /,/^$/s/^| \([a-z-]*\) .*/\1/p' docs/words.md | grep -v '^-*$' | grep -v '^word$' >"$work/words"
test "$(wc -l <"$work/words")" -ge 35 || { echo "docs/words.md explains too few words"; exit 1; }
while read -r word; do
    if ! grep -rqiw -- "$word" include libdualpipe; then
        echo "docs/words.md explains \"$word\", which no header and no source says"
        failures=$((failures + 1))
    fi
done <"$work/words"
exit $((failures > 0))
