#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_frozen.sh: what was built for an earlier minor version, or will be for a later one, works with this one, whichever side
# it is on. Hosts: a trainer built from the headers of each released version (frozen/), of today, and of tomorrow: today's with a
# member more in every sized struct and table (grow.awk), the library built with them as well. Plugins of every kind built the
# same three ways, the tree's own, and mixtures of them. Each host trains with each set; with one set all give the same bits.
# A trainer, or a host's config, that sets a member of tomorrow is refused by today's library or by plugins as frozen.
set -eu
. "$DP_TEST_SRCDIR/tests/abi/outside.sh"

today=$DP_TEST_SRCDIR/include
frozen=$DP_TEST_SRCDIR/tests/abi/frozen
templates=$DP_TEST_SRCDIR/examples/plugin_template
kinds="device comm attention moe profiler"
libraries="-lpthread -ldl -lm"
versions=$(cd "$frozen" && ls -d [0-9]*)
newest=$(for version in $versions; do echo "$version"; done | sort -t. -k1,1n -k2,2n | tail -n 1)

# ---- tomorrow's headers and library ----

mkdir -p "$work/headers/dualpipe" "$work/objects"
for header in "$today"/dualpipe/*.h; do
    awk -v grown="$work/grown" -f "$DP_TEST_SRCDIR/tests/abi/grow.awk" "$header" >"$work/headers/dualpipe/$(basename "$header")"
done
cp -R "$today/dualpipe/draft" "$work/headers/dualpipe/" # of which nothing is frozen
sized=$(cat "$today"/dualpipe/*.h | grep -c '^    uint32_t struct_size;')
[ "$(wc -l <"$work/grown")" -eq "$sized" ] || complain "$(wc -l <"$work/grown") structs have grown, $sized have a size"
echo "$sized structs and tables have a member more: $(tr '\n' ' ' <"$work/grown")"

cat >"$work/compile.sh" <<'SH'
out=$1
shift
for source; do
    $CC ${CFLAGS-} -std=gnu11 -O0 -w -D_GNU_SOURCE -DDP_PLUGIN_DIR='"/nowhere"' -I"$TOMORROW" -I"$DP_TEST_SRCDIR/libdualpipe" \
        -I"$DP_TEST_BUILDDIR" -I"$DP_TEST_SRCDIR" -c -o "$out/$(echo "$source" | tr / _).o" "$DP_TEST_SRCDIR/$source" || exit 255
done
SH
TOMORROW=$work/headers
export TOMORROW CC
for object in $DP_TEST_OBJECTS; do
    echo "$object" | sed 's|/[a-z_]*-\([^/]*\)\.o$|/\1.c|'
done >"$work/sources"
quietly "tomorrow's library" sh -c "xargs -P 2 -n 8 sh '$work/compile.sh' '$work/objects' <'$work/sources' && ar rc '$work/libtomorrow.a' '$work/objects'/*.o"

# ---- hosts ----

host() { # NAME SOURCE INCLUDE LIBRARY
    quietly "host: $1" $CC $flags -std=c11 -I"$3" ${LDFLAGS-} -o "$work/host_$1" "$2" "$4" $libraries || :
}
hosts=
for version in $versions; do
    host "$version" "$frozen/$version/host.c" "$frozen/$version/include" "$DP_TEST_BUILDDIR/libdualpipe.a"
    hosts="$hosts $version"
done
host today "$frozen/$newest/host.c" "$today" "$DP_TEST_BUILDDIR/libdualpipe.a"
host tomorrow "$frozen/$newest/host.c" "$work/headers" "$work/libtomorrow.a"
hosts="today $hosts tomorrow"

# Trainers of tomorrow that ask for what today's library, or a plugin as frozen, does not know.
asking() { # NAME STRUCT LIBRARY
    sed "s/\\(\\.struct_size = sizeof($2),\\)/\\1 .dp_test_grown = 1,/" "$frozen/$newest/host.c" >"$work/asking.c"
    grep -q dp_test_grown "$work/asking.c" || complain "host.c has no \"$2\""
    host "$1" "$work/asking.c" "$work/headers" "$3"
}
asking options options "$DP_TEST_BUILDDIR/libdualpipe.a"
asking step step "$DP_TEST_BUILDDIR/libdualpipe.a"
for struct in device attention moe shape; do
    asking "$struct" "$struct" "$work/libtomorrow.a"
done
host zero "$frozen/$newest/host.c" "$work/headers" "$DP_TEST_BUILDDIR/libdualpipe.a" # longer, and asks for nothing
hosts="$hosts zero"

# The smallest trainer of each release.
for version in $versions; do
    host "smallest_$version" "$frozen/$version/smallest.c" "$today" "$DP_TEST_BUILDDIR/libdualpipe.a"
    quietly "the smallest trainer of $version" env DUALPIPE_PLUGIN_PATH="$DP_TEST_BUILDDIR/.libs" \
        "$DP_TEST_BUILDDIR/dualpipe" run -n 2 -- "$work/host_smallest_$version" || :
done

# ---- plugins ----

# A template serves every version whose headers it compiles with; a version that it has outgrown keeps a copy in plugins/.
as_frozen() { # VERSION KIND
    [ -f "$frozen/$1/plugins/$2.c" ] && echo "$frozen/$1/plugins/$2.c" || echo "$templates/$2/${2}_mine.c"
}
plugins() { # SET INCLUDE SOURCE-OF-KIND...: each in its place, under the name that all sets have
    mkdir "$work/$1"
    for kind in $kinds; do
        eval "source=$3"
        quietly "plugin of $1: $kind" $CC $flags -std=c11 -fPIC -fvisibility=hidden -I"$2" -shared ${LDFLAGS-} \
            -o "$work/$1/dp_${kind}_mine.so" $source -lpthread -lm || :
    done
}
for version in $versions; do
    plugins "$version" "$frozen/$version/include" '$(as_frozen $version $kind)'
done
plugins today "$today" '$templates/$kind/${kind}_mine.c'
plugins tomorrow "$work/headers" '$templates/$kind/${kind}_mine.c'
# Of tomorrow, the tree's own that need nothing but a compiler; and mixtures, in which plugins of two versions call each other.
mkdir "$work/tree" "$work/tree_tomorrow" "$work/mixed" "$work/mixed_too"
for kind in device_cpu comm_shm attention_cpu moe_cpu; do
    cp "$DP_TEST_BUILDDIR/.libs/dp_$kind.so" "$work/tree/dp_${kind%_*}_mine.so"
    cp "$DP_TEST_BUILDDIR/.libs/dp_$kind.so" "$work/tree_tomorrow/dp_${kind%_*}_mine.so"
done
for kind in device_cpu comm_shm; do
    quietly "plugin of tree_tomorrow: $kind" $CC ${CFLAGS-} -std=gnu11 -O1 -w -D_GNU_SOURCE -fPIC -fvisibility=hidden -I"$work/headers" -I"$DP_TEST_SRCDIR" \
        -shared ${LDFLAGS-} -o "$work/tree_tomorrow/dp_${kind%_*}_mine.so" "$DP_TEST_SRCDIR/plugins/$kind"/*.c -lpthread -lm || :
done
for kind in $kinds; do
    case $kind in
    device | attention) one=tomorrow other=$newest ;;
    *) one=$newest other=tomorrow ;;
    esac
    cp "$work/$one/dp_${kind}_mine.so" "$work/mixed/"
    cp "$work/$other/dp_${kind}_mine.so" "$work/mixed_too/"
done
sets="today $versions tomorrow mixed mixed_too tree tree_tomorrow"

# ---- all with all ----

train() { # HOST SET OUTPUT
    profiler=
    [ ! -f "$work/$2/dp_profiler_mine.so" ] || profiler=$work/$2/dp_profiler_mine.so
    timeout $((60 * scale)) "$DP_TEST_BUILDDIR/dualpipe" run -n 4 -- "$work/host_$1" 2 "$work/$2/dp_device_mine.so" \
        "$work/$2/dp_comm_mine.so" "$work/$2/dp_attention_mine.so" "$work/$2/dp_moe_mine.so" $profiler \
        >"$3" 2>"$work/log" </dev/null
}

for set in $sets; do
    for host in $hosts; do
        set +e
        train "$host" "$set" "$work/$set/$host"
        status=$?
        set -e
        if [ "$status" -ne 0 ]; then
            complain "the host of $host with the plugins of $set: exit status $status"
        elif ! cmp -s "$work/$set/today" "$work/$set/$host"; then
            cat "$work/$set/$host" >"$work/log"
            complain "the host of $host with the plugins of $set: other losses than the host of today"
        fi
    done
    close_enough "$work/today/today" "$work/$set/today" || complain "the plugins of $set: other losses than those of today"
done
[ "$(grep -c 'loss 0x1' "$work/today/today")" -eq 4 ] || complain "not four steps with losses"
for set in tomorrow mixed; do # a newer minor is told, not refused
    quietly "dualpipe plugin list, plugins of $set" env DUALPIPE_PLUGIN_PATH="$work/$set" "$DP_TEST_BUILDDIR/dualpipe" plugin list || :
done

# ---- what is asked and not known ----

refused() { # HOST SET WORDS
    if train "$1" "$2" "$work/out"; then
        complain "the host that asks by $1 has trained with the plugins of $2"
    elif [ "$(grep -c "$3" "$work/log")" -eq 0 ]; then
        complain "the host that asks by $1, plugins of $2: no sentence with \"$3\""
    fi
}
refused options today "byte [0-9]* of dp_pipeline_options_t is set, but this library"
refused step today "byte [0-9]* of dp_step_t is set, but this library"
for set in $newest today tree; do
    refused device "$set" "byte [0-9]* of dp_device_config_t is set, but this plugin"
    refused attention "$set" "byte [0-9]* of dp_attention_config_t is set, but this plugin"
    refused moe "$set" "byte [0-9]* of dp_moe_config_t is set, but this plugin"
    refused shape "$set" "byte [0-9]* of dp_block_shape_t is set, but this plugin"
done
echo "hosts: $hosts; plugins: $sets"
finish
