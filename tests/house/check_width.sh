#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_width.sh: comments of C and CUDA sources and the lines of pages end at column 100. Code may be wider; so may
# tables, code blocks and addresses in pages.
#   check_width.sh FILE...   prints their wide lines
set -eu

find_wide() {
    LC_ALL=C xargs awk '
        function width(text) { gsub(/[\200-\277]/, "", text); return length(text) }
        # The column at which the last comment of the line ends, 0: none. Strings are no comments.
        function comment_end(line,   i, c, quote, end) {
            end = 0
            for (i = 1; i <= length(line); i++) {
                c = substr(line, i, 1)
                if (inside) {
                    end = i
                    if (c == "*" && substr(line, i + 1, 1) == "/") { inside = 0; end = ++i }
                } else if (quote != "") {
                    if (c == "\\") i++
                    else if (c == quote) quote = ""
                } else if (c == "\"" || c == "\047")
                    quote = c
                else if (c == "/" && substr(line, i + 1, 1) == "*") { inside = 1; end = ++i }
                else if (c == "/" && substr(line, i + 1, 1) == "/") return length(line)
            }
            return end
        }
        FNR == 1 { inside = fence = code = 0; blank = 1; page = FILENAME ~ /\.md$/ }
        !page {
            if (!inside && !index($0, "/*") && !index($0, "//")) next
            end = comment_end($0)
            if (end > 100 && width(substr($0, 1, end)) > 100)
                print FILENAME ":" FNR ": " $0
            next
        }
        /^ *```/ { fence = !fence; next }
        fence || /^ *\|/ || /^ *!\[/ { next }
        /^ *$/ { blank = 1; next }
        /^    / && (blank || code) { code = 1; next }
        { code = blank = 0 }
        length($0) > 100 {
            text = $0
            gsub(/\]\([^)]*\)|https?:\/\/[^ )>]*/, "", text)
            if (width(text) > 100)
                print FILENAME ":" FNR ": " $0
        }'
}

if [ $# -gt 0 ]; then
    printf '%s\n' "$@" | find_wide
    exit
fi
cd "${DP_TEST_SRCDIR:-$(dirname "$0")/../..}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
find README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs include libdualpipe plugins conform tools apps examples python bench tests \
    \( -path tests/abi/frozen -o -path tests/data -o -path tests/fuzz/corpus \) -prune -o \
    \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' ! -name Makefile.inc -o -name '*.md' \) -print |
    find_wide >"$work/wide"
[ -s "$work/wide" ] || exit 0
cat "$work/wide"
echo "^ wider than 100 columns: wrap these comments"
exit 1
