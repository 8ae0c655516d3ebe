#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_tags.sh: right above each function of the public headers stands a comment that says, by its tags (status.h), which
# thread may call it or when; a result that is a status is DP_CHECKED, unless the comment says why not.
set -eu

cd "$DP_TEST_SRCDIR/include/dualpipe"
awk '
    function fails(what) { print FILENAME ":" FNR ": " name ": " what; bad = 1 }
    FNR == 1 { comment = ""; inside = 0 }
    /^\/\*/ { comment = ""; inside = 1 }
    inside { comment = comment $0 "\n"; if (/\*\//) inside = 0; next }
    /^DP_API / {
        line = $0
        if (line !~ /\(/) { getline; line = line " " $0 }
        match(line, /[a-z0-9_]+\(/)
        name = substr(line, RSTART, RLENGTH - 1)
        functions++
        if (comment == "")
            fails("has no comment")
        else if (comment !~ /\[(main|any|signal|collective|blocks|enqueue s)\]/)
            fails("has no tag")
        if (line ~ /^DP_API dp_status_t/ && name !~ /^dp_failv?$/ && comment !~ /may be dropped/)
            fails("is not DP_CHECKED")
    }
    !/^[ \t]*$/ && !/^[ )]/ { comment = "" }
    END {
        print functions " functions"
        exit bad || functions < 100
    }' $(find . -name '*.h' | sort)
