# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# grow.awk: a header as a later minor version may have it: every struct and table that says its size has one member more at
# its end, and DP_ABI_MINOR is 99. Writes the header; the names of what has grown go to the file `grown`.
/^(typedef )?struct [a-z_]+ \{/ {
    inside = 1
    sized = 0
    members = 0
    match($0, /dp_[a-z_]+/)
    name = substr($0, RSTART, RLENGTH)
}
inside && /;/ && members++ == 0 && /^ *uint32_t struct_size;/ { sized = 1 }
inside && /^\}/ {
    if (sized) {
        print "    uint64_t dp_test_grown;"
        print name >> grown
    }
    inside = 0
}
/^#define DP_ABI_MINOR / { $0 = "#define DP_ABI_MINOR 99" }
{ print }
