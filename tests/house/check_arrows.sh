#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_arrows.sh: every include line of the tree is an arrow from one room to another; docs/architecture.md has the table of
# those there may be ("Rooms, and who may know whom"). An arrow that is not in it fails, and so does a room without a row.
set -eu

cd "$DP_TEST_SRCDIR"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# | `room` | rooms it may include ... |
sed -n '/^| room | may include/,/^$/s/^| `\([^`]*\)` | \(.*\) |$/\1 \2/p' docs/architecture.md | tr -d '`,' >"$work/table"
# | header, header ... | `room` |, for the rooms of the core
sed -n '/^| public headers | room/,/^$/s/^| \([^|`]*\) | `\{0,1\}\([^`|]*\)`\{0,1\} |$/\1 @\2/p' docs/architecture.md |
    awk -F' @' '{ n = split($1, h, ", *"); for (i = 1; i <= n; i++) print "<dualpipe/" h[i] ".h>", $2 }' >>"$work/table"
test "$(wc -l <"$work/table")" -ge 40 || { echo "docs/architecture.md has no table of rooms"; exit 1; }

find include libdualpipe plugins conform tools apps examples python bench tests \
    \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \) ! -name 'Makefile.inc' \
    ! -path 'tests/data/*' ! -path 'tests/fuzz/corpus/*' | sort >"$work/files"

# The room of a file is the first row that its path begins with, the longest if several do.
xargs grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]+["<]' /dev/null <"$work/files" | awk -v files="$work/files" '
    function room(path,   i, best) {
        best = ""
        for (i = 1; i <= rooms; i++)
            if (index(path, name[i] "/") == 1 && length(name[i]) > length(best))
                best = name[i]
        return best
    }
    function may(from, to,   i, n, list) {
        n = split(allowed[from], list, " ")
        for (i = 1; i <= n; i++)
            if (list[i] == to || list[i] == "anything")
                return 1
        return 0
    }
    FNR == NR && /^</ { home[substr($1, 2, length($1) - 2)] = $2; next }
    FNR == NR { rooms++; name[rooms] = $1; $1 = ""; allowed[name[rooms]] = $0; next }
    {
        split($0, part, ":")
        path = part[1]
        text = $0
        sub(/^[^:]*:[^:]*:[^"<]*/, "", text)
        kind = substr(text, 1, 1)
        text = substr(text, 2)
        sub(/[">].*/, "", text)
        from = room(path)
        if (from == "") { print path ": is in no room of docs/architecture.md"; bad = 1; next }
        if (kind == "<") {
            if (text !~ /^dualpipe\//)
                next
            target = "include/" text
            if (!(text in home)) { print text ": is no public header of docs/architecture.md"; bad = 1; next }
            if (from ~ /^libdualpipe/ && home[text] != "everybody" && home[text] != from && !may(from, home[text])) {
                print path ":" part[2] ": " from " may not include <" text ">, which is of " home[text]
                bad = 1
            }
        } else {
            folder = path
            sub(/[^\/]*$/, "", folder)
            target = ""
            n = split(folder "|libdualpipe/|plugins/||", bases, "|")
            for (i = 1; i <= n && target == ""; i++)
                if (bases[i] text in exists || (getline line < (bases[i] text)) >= 0) {
                    exists[bases[i] text] = 1
                    close(bases[i] text)
                    target = bases[i] text
                }
            if (target == "" && text ~ /(^config\.h|trace_page\.inc)$/)
                next # made by the build
            if (target == "") { print path ":" part[2] ": there is no " text; bad = 1; next }
        }
        while (match(target, /[^\/]+\/\.\.\//))
            target = substr(target, 1, RSTART - 1) substr(target, RSTART + RLENGTH)
        to = room(target)
        arrows++
        if (to != from && !may(from, to)) {
            print path ":" part[2] ": " from " may not include " to " (" text ")"
            bad = 1
        }
    }
    END { print arrows " includes looked at"; exit bad || arrows < 500 }
' "$work/table" - || { echo "^ not in the table of docs/architecture.md"; exit 1; }
