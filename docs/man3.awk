# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# man3.awk: a public header as a manual page. The comment at its head is the description; what is declared stands in front of the
# comment above it. `.\" offers NAME` names each function, which gets a page of its own that leads here.
function escape(line) {
    gsub(/\\/, "\\e", line)
    gsub(/-/, "\\-", line)
    return line ~ /^[.']/ ? "\\&" line : line
}
function literally(yes) {
    if (yes != literal)
        print yes ? ".PP\n.nf" : ".fi\n.PP"
    literal = yes
}
# Points ("- ...") and terms ("  NAME  what it is") go on in lines that stand further in than they do.
function describe(text,    lines, n, i, line, inset, listed) {
    listed = -1
    n = split(text, lines, "\n")
    for (i = 1; i <= n; i++) {
        line = lines[i]
        match(line, /^ */)
        inset = RLENGTH
        if (listed < 0 && inset > 3) {
            literally(1)
            print escape(line)
            continue
        }
        literally(0)
        sub(/^ +/, "", line)
        if (line != "" && listed >= 0 && inset > listed) {
            print escape(line)
        } else if (line ~ /^- /) {
            print ".IP \\- 2\n" escape(substr(line, 3))
            listed = inset
        } else if (inset > 1 && match(line, /[^ ]  +/)) {
            print ".TP 24\n" escape(substr(line, 1, RSTART)) "\n" escape(substr(line, RSTART + RLENGTH))
            listed = inset
        } else {
            if (line == "" || listed >= 0)
                print ".PP"
            listed = -1
            if (line != "")
                print escape(line)
        }
    }
    literally(0)
}
function flush(    lines, n, i) {
    if (code != "") {
        print ".PP\n.nf"
        n = split(code, lines, "\n")
        for (i = 1; i <= n; i++)
            print escape(lines[i])
        print ".fi"
    }
    if (said != "") {
        print code != "" ? ".RS 4" : ".PP"
        describe(said)
        if (code != "")
            print ".RE"
    }
    code = said = ""
}
function page(    name, summary, at) {
    name = said
    sub(/\.h: .*/, "", name)
    sub(/^[a-z_0-9]*\.h: /, "", said)
    at = match(said, /\.( |\n|$)/)
    summary = substr(said, 1, at - 1)
    said = substr(said, at + 1)
    sub(/^[ \n]+/, "", said)
    gsub(/\n/, " ", summary)
    print ".TH dualpipe_" name " 3 \"\" \"libdualpipe " version "\" \"libdualpipe\"\n.nh\n.ad l"
    print ".SH NAME\ndualpipe_" name " \\- " escape(summary)
    print ".SH SYNOPSIS\n.nf\n#include <dualpipe/" name ".h>\n.PP\ncc ... $(pkg\\-config \\-\\-cflags \\-\\-libs dualpipe)\n.fi"
    print ".SH DESCRIPTION"
    describe(said)
    print ".SH DECLARATIONS"
    said = ""
    begun = 1
}

# Comments at the left edge, and what stands in the middle of a declaration as part of that.
!comment && code == "" && /^\/\*/ { flush(); comment = 1; sub(/^\/\*+ ?/, "") }
comment {
    line = $0
    comment = line !~ /\*\/$/
    sub(/ *\*\/$/, "", line)
    sub(/^ \* ?/, "", line)
    sub(/^ /, line ~ /^  / ? " " : "", line)
    if (line !~ /^SPDX-/ && (said != "" || line != ""))
        said = said (said == "" ? "" : "\n") line
    if (!comment && !begun)
        page()
    next
}
/^#(ifndef|ifdef|endif|else|if|include)/ || /^#define DUALPIPE_[A-Z_]*_H$/ || /^extern "C"/ || /^}$/ && code == "" { next }
/^static inline/ { bodied = 1 }
bodied && /^{/ { inside = 1 }
inside { if (/^}/) inside = bodied = 0; next }
/^$/ { if (!depth) flush(); if (!depth) next }
{
    code = code (code == "" ? "" : "\n") $0
    depth += gsub(/{/, "{") - gsub(/}/, "}")
    if (/^(DP_API|static inline)/ && match($0, /dp_[a-z0-9_]+\(/))
        print ".\\\" offers " substr($0, RSTART, RLENGTH - 1)
}
END { flush() }
