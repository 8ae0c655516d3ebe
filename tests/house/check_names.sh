#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_names.sh: what a plugin defines for its other files bears the plugin's prefix, what the core does is dp_* or dp__*,
# and no function name, static ones included, stands for more than three functions of the product.
set -eu

cd "${DP_TEST_SRCDIR:-$(dirname "$0")/../..}"
source=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The prefixes that a folder may use. A plugin has those of the folders that it shares with others, too.
cat >"$work/prefixes" <<'END'
plugins/attention attn_
plugins/attention_cpu attn_
plugins/attention_cuda attn_
plugins/attention_cudnn attn_
plugins/comm comm_
plugins/comm_cuda_ipc ipc_
plugins/comm_mpi mpi_
plugins/comm_nccl nccl_
plugins/comm_ofi ofi_
plugins/comm_shm shm_
plugins/common dp_plugin_entry
plugins/cpu cpu_
plugins/cuda cuda_
plugins/device_cpu cpu_
plugins/device_cuda cuda_
plugins/ep_exchange ep_
plugins/hook_cupti cupti_
plugins/moe moe_
plugins/moe_cpu moe_
plugins/moe_cuda moe_
END

# Definitions begin in column 0, as clang-format lays them out: "kind name file".
find libdualpipe plugins conform tools apps \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \) \
    ! -name Makefile.inc | sort >"$work/files"
xargs awk '
    function define(   rest, name) {
        gsub(/__attribute__ *\(\([^;]*\)\) */, "", text)
        rest = text
        while (match(rest, /[A-Za-z_][A-Za-z_0-9]*\(/)) {
            name = substr(rest, RSTART, RLENGTH - 1)
            rest = substr(rest, RSTART + RLENGTH)
            if (name ~ /^(__launch_bounds__|__align__|[A-Z][A-Z_0-9]*)$/)
                continue
            print text ~ /(^| )(static|INLINED) / ? "static" : "extern", name, FILENAME
            return
        }
    }
    FNR == 1 { text = "" }
    /^\{/ { if (text ~ /\)[^;=]*$/) define(); text = ""; next }
    /^[A-Za-z_]/ { text = $0; next }
    /^[ \t]/ && text != "" { text = text " " $0; if (/[;{}][ \t]*$/) text = ""; next }
    { text = "" }' <"$work/files" | sort -u >"$work/functions"
test "$(wc -l <"$work/functions")" -ge 4000 || { echo "no functions found in the sources"; exit 1; }

# Kernels live in separate modules, so theirs alone may be called anything.
awk '$1 == "extern" && $3 ~ /^plugins\// && $3 !~ /\.cuh?$/ { print $2, $3 }' "$work/functions" >"$work/crossing"
# What macros define shows in the objects: those whose source is still there.
objects=
if cd "${DP_TEST_BUILDDIR:-$source/build}" 2>/dev/null; then
    objects=yes
    find plugins -name '*.o' 2>/dev/null | sed -n 's|^\(.*\)/\(.libs/\)\{0,1\}\([^/]*_la-\)\{0,1\}\([^/]*\)\.o$|& \1/\4.c|p' | sort -u -k2,2 |
        while read -r object file; do
            test ! -e "$source/$file" || ${NM:-nm} -g "$object" | sed -n "s|^[0-9a-f]* [A-TV-Z] \([^@ ]*\)$|\1 $file|p"
        done >>"$work/crossing"
fi
sort -u "$work/crossing" | awk '
    FNR == NR { prefixes[$1] = $2; next }
    $1 == "dp_plugin_entry" { next }
    {
        folder = $2
        while (sub(/\/[^\/]*$/, "", folder) && !(folder in prefixes))
            ;
        if (!(folder in prefixes))
            print "folder", $2
        else if (index($1, prefixes[folder]) != 1)
            print folder, $1
    }' "$work/prefixes" - >"$work/found"
if [ -n "$objects" ] && [ -n "${DP_TEST_OBJECTS:-}" ]; then
    ${NM:-nm} -g $DP_TEST_OBJECTS | sed -n 's/^[0-9a-f]* [A-TV-Z] \([^@ ]*\)$/libdualpipe \1/p' | grep -v -e ' dp_' -e ' __odr_asan\.' >>"$work/found" || true
fi
awk '$2 != "main" { print $2, $3 }' "$work/functions" | sort -u | awk '{ n[$1]++ } END { for (name in n) if (n[name] > 3) print "several", name }' \
    >>"$work/found"

cd "$source"
sort -u "$work/found" >"$work/now"
status=0
while read -r folder name; do
    status=1
    case $folder in
    several) echo "$name: stands for more than three functions; give it an object:" && grep " $name " "$work/functions" | sed 's/^[a-z]* [^ ]*/   /' ;;
    folder) echo "$name: its folder has no prefix in check_names.sh" ;;
    libdualpipe) echo "$name: the core defines it for other files, and it is neither dp_* nor dp__*" ;;
    *) echo "$name: $folder defines it for other files without the prefix $(sed -n "s|^$folder ||p" "$work/prefixes")" ;;
    esac
done <"$work/now"
exit $status
