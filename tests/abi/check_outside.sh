#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_outside.sh: what is installed serves an outsider who knows pkg-config alone. The templates build with make and CMake, keep
# their contracts and train as the plugins of the tree do; plugin-abi.md's example works as it stands there; the examples and
# train_moe build from what is installed of them, with pkg-config, make, CMake and from C++; plugins that carry the library are
# refused. Installs into a separate folder; with DP_INSTALL_ROOT (make installcheck: DESTDIR) looks at what is installed there.
set -eu
. "$DP_TEST_SRCDIR/tests/abi/outside.sh"

if [ -z "${DP_INSTALL_ROOT+set}" ]; then
    root=$work/root
    quietly "make install" env MAKEFLAGS= make -C "$DP_TEST_BUILDDIR" install DESTDIR="$root" || exit 1
    DP_INSTALL_PKGCONFIG=$(cd "$root" && find . -name dualpipe.pc | sed 's|^\.||; s|/dualpipe\.pc$||')
else
    root=$DP_INSTALL_ROOT
fi
mkdir "$work/pc" "$work/made"
for pc in "$root$DP_INSTALL_PKGCONFIG"/dualp*.pc; do # as installed, but for the folder that it was put into
    sed "s|^\([a-z_]*\)=/|\1=$root/|" "$pc" >"$work/pc/$(basename "$pc")"
done
PKG_CONFIG_LIBDIR=$work/pc
PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1 # a prefix of /usr is not the system's in here
export PKG_CONFIG_LIBDIR PKG_CONFIG_ALLOW_SYSTEM_CFLAGS PKG_CONFIG_ALLOW_SYSTEM_LIBS
plugindir=$(pkg-config --variable=plugindir dualpipe)
libdir=$(pkg-config --variable=libdir dualpipe)
LD_LIBRARY_PATH=$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} # no ldconfig knows it
doc=$(pkg-config --variable=docdir dualpipe)
PATH=$(pkg-config --variable=exec_prefix dualpipe)/bin:$PATH
if [ -n "$root" ]; then
    DUALPIPE_PLUGIN_PATH=$work/made:$plugindir
else
    DUALPIPE_PLUGIN_PATH=$work/made # the installed ones are found where configure said
fi
export PATH DUALPIPE_PLUGIN_PATH LD_LIBRARY_PATH
train_moe=$(command -v train_moe) || complain "train_moe is not installed"

# ---- what is there ----

for file in docs/plugin-abi.md docs/architecture.md docs/schedules.md docs/traces.md docs/eplb.md README.md LICENSE examples/smallest/smallest.c; do
    [ -f "$doc/$file" ] || complain "$doc/$file is not installed"
done
for page in man1/dualpipe.1 man3/dualpipe_pipeline.3 man3/dp_pipeline_step.3 man3/dp_eplb_rebalance.3; do
    [ -f "${doc%/doc/dualpipe}/man/$page" ] || complain "$page is not installed"
done
for la in ${DP_TEST_PLUGINS-}; do
    [ ! -e "$plugindir/$la" ] || complain "$la was installed: nobody needs it"
    name=${la#dp_}
    quietly "installed ${name%.la} loads" dualpipe plugin check "${name%.la}" --list || :
done

# ---- templates ----

kinds="attention comm device moe profiler"
for kind in $kinds; do
    cp -R "$doc/examples/plugin_template/$kind" "$work/$kind"
    quietly "$kind: make" make -C "$work/$kind" CC="$CC" CFLAGS="$flags" || continue
    quietly "$kind: make check" make -C "$work/$kind" check || :
    grep ' passed, ' "$work/log" || :
    cp "$work/$kind/dp_${kind}_mine.so" "$work/made/"
done
if command -v cmake >/dev/null 2>&1; then
    for kind in $kinds; do
        quietly "$kind: cmake" env CFLAGS="$flags" cmake -S "$work/$kind" -B "$work/cmake/$kind" &&
            quietly "$kind: cmake --build" cmake --build "$work/cmake/$kind" &&
            quietly "$kind: ctest" env CTEST_OUTPUT_ON_FAILURE=1 ctest --test-dir "$work/cmake/$kind" || :
    done
else
    echo "no cmake: CMakeLists.txt of the templates was not tried"
fi

small="--layers 4 --hidden 8 --heads 2 --kv-heads 1 --experts 4 --expert-hidden 8 --seq 8 --batch 1 --warmup 2
    --steps 3 --val-every 2 --sample 0 --microbatches 8 --quiet --dtype f64 --gate softmax --aux-alpha 0.01"
train() { # NAME OPTIONS...: two pipeline ranks by two expert ranks, as processes
    name=$1
    shift
    quietly "train_moe $*" timeout $((60 * scale)) dualpipe run -n 4 -- "$train_moe" $small --ep 2 --losses "$work/losses_$name" "$@" || :
}
train tree --device cpu --comm shm --attention cpu --moe cpu
for kind in device comm; do # the contract says every bit
    case $kind in
    device) train $kind --device mine --comm shm --attention cpu --moe cpu ;;
    comm) train $kind --comm mine ;;
    esac
    cmp -s "$work/losses_tree" "$work/losses_$kind" || complain "${kind}_mine: other losses than those of the tree's plugin"
done
for kind in attention moe; do
    train $kind --$kind mine
    close_enough "$work/losses_tree" "$work/losses_$kind" || complain "${kind}_mine: other losses than those of ${kind}_cpu: $(diff "$work/losses_tree" "$work/losses_$kind" | head -n 4)"
done
train all --device mine --comm mine --attention mine --moe mine
close_enough "$work/losses_tree" "$work/losses_all" || complain "all templates together: other losses"

# ---- a core ----

cblas() { # LIBS|CFLAGS: what configure has found
    sed -n "s/^CBLAS_$1 = //p" "$DP_TEST_BUILDDIR/Makefile"
}
cp -R "$doc/examples/plugin_core" "$work/core"
[ "$(wc -l <"$work/core/attention_loops.c")" -le 150 ] || complain "plugin_core: a core takes more than 150 lines"
if quietly "plugin_core: make" make -C "$work/core" TOP="$doc" CC="$CC" CFLAGS="$flags" CBLAS="$(cblas LIBS)" CBLAS_CFLAGS="$(cblas CFLAGS)"; then
    quietly "plugin_core: make check" make -C "$work/core" TOP="$doc" CC="$CC" check || :
    grep ' passed, ' "$work/log" || :
    loops=$work/core/dp_attention_loops.so
    # The order of sums is that of attention_cpu where BLAS adds products one by one, without rounding in between.
    ordered=no
    case "$(uname -m) $(cblas LIBS)" in x86_64*openblas*) grep -qw fma /proc/cpuinfo && ordered=yes ;; esac
    [ $ordered = no ] || { OPENBLAS_CORETYPE=Haswell && export OPENBLAS_CORETYPE; }
    train tiles --device cpu --comm shm --attention cpu --moe cpu
    train loops --device cpu --comm shm --attention "$loops" --moe cpu
    train window --device cpu --comm shm --attention "$loops" --attention-settings window=3 --moe cpu
    unset OPENBLAS_CORETYPE
    if [ $ordered = yes ]; then
        cmp -s "$work/losses_tiles" "$work/losses_loops" || complain "plugin_core: other bits than attention_cpu"
    else
        close_enough "$work/losses_tiles" "$work/losses_loops" || complain "plugin_core: other losses than attention_cpu"
    fi
    ! cmp -s "$work/losses_loops" "$work/losses_window" || complain "plugin_core: a window changes nothing"
fi

# ---- the page ----

# Its shell examples, one after the other, in an empty folder.
mkdir "$work/page"
sed -n '/^```sh$/,/^```$/{/^```/!p}' "$doc/docs/plugin-abi.md" >"$work/page.sh"
[ -s "$work/page.sh" ] || complain "plugin-abi.md has no shell example"
if (cd "$work/page" && quietly "plugin-abi.md's example" sh -eu "$work/page.sh"); then
    cp "$work/page/attention_naive/dp_attention_naive.so" "$work/made/"
    train page --attention naive
    cmp -s "$work/losses_attention" "$work/losses_page" || complain "the page's plugin trains otherwise than the template it is a copy of"
else
    failures=$((failures + 1))
fi

# ---- programs ----

links() { # PROGRAM shared|static: it loads the library, or holds it
    loads=$(ldd "$1" | grep -c 'libdualpipe\.so\.[0-9]* => /' || :)
    case $2$loads in
    shared1 | static0) ;;
    shared0) [ ! -e "$libdir/libdualpipe.so" ] || complain "$1 holds the archive though there is a shared library" ;;
    *) complain "$1, $2: ldd names libdualpipe $loads times" ;;
    esac
}
quietly "smallest.c links with plain --libs" \
    $CC ${CFLAGS-} $(pkg-config --cflags dualpipe) ${LDFLAGS-} -o "$work/smallest" "$doc/examples/smallest/smallest.c" $(pkg-config --libs dualpipe) &&
    links "$work/smallest" shared &&
    quietly "smallest trains" timeout $((60 * scale)) dualpipe run -n 2 -- "$work/smallest" || :
quietly "smallest.c links with the archive" \
    $CC ${CFLAGS-} $(pkg-config --cflags dualpipe) ${LDFLAGS-} -o "$work/smallest_static" "$doc/examples/smallest/smallest.c" \
    $(pkg-config --static --libs dualpipe | sed "s|-ldualpipe\\>|$libdir/libdualpipe.a|") &&
    links "$work/smallest_static" static &&
    quietly "smallest with the archive trains" timeout $((60 * scale)) dualpipe run -n 2 -- "$work/smallest_static" || :
if $CC ${CFLAGS-} $(pkg-config --cflags dualpipe) -static -o "$work/smallest_alone" "$doc/examples/smallest/smallest.c" \
    $(pkg-config --static --libs dualpipe) >"$work/log" 2>&1; then
    ! timeout $((60 * scale)) dualpipe run -n 2 -- "$work/smallest_alone" >"$work/log" 2>&1 &&
        grep -q 'this one is static: link without -static' "$work/log" || complain "a fully static program is not told why it cannot run"
else
    echo "no static libc, or a sanitizer: a fully static program was not tried"
fi
cp -R "$doc/apps/train_moe" "$work/train_moe.d"
quietly "train_moe: make" make -C "$work/train_moe.d" TOP="$doc" CC="$CC" CFLAGS="$flags" LDFLAGS="${LDFLAGS-}" && {
    quietly "train_moe of its sources alone trains" timeout $((60 * scale)) dualpipe run -n 4 -- "$work/train_moe.d/train_moe" $small --ep 2 \
        --losses "$work/losses_alone" --device cpu --comm shm --attention cpu --moe cpu
    close_enough "$work/losses_tree" "$work/losses_alone" || complain "train_moe of its sources alone: other losses"
} || :
for example in smallest recovery lengths swap_comm generate plan; do
    cp -R "$doc/examples/$example" "$work/$example.d"
    quietly "$example: make check" make -C "$work/$example.d" CC="$CC" CFLAGS="$flags" LDFLAGS="${LDFLAGS-}" TRAIN_MOE="$work/train_moe.d/train_moe" check || :
    command -v cmake >/dev/null 2>&1 || continue
    [ "${DP_TEST_LONG:-0}" = 1 ] || [ $example = smallest ] || [ $example = plan ] || continue
    quietly "$example: cmake finds the package" env CFLAGS="$flags" LDFLAGS="${LDFLAGS-}" cmake -S "$work/$example.d" \
        -B "$work/cmake/$example" -DCMAKE_PREFIX_PATH="$libdir" &&
        quietly "$example: cmake --build" cmake --build "$work/cmake/$example" &&
        links "$work/cmake/$example/$example" $([ $example = plan ] && echo static || echo shared) &&
        quietly "$example: ctest" env CTEST_OUTPUT_ON_FAILURE=1 ctest --test-dir "$work/cmake/$example" || :
done
# A program that asks for both libraries, in the wrong order, has each object once.
links "$work/plan.d/plan" static
both() { # PROGRAM
    ! $NM "$1" | grep -q ' T dp_' || [ ! -e "$libdir/libdualpipe.so" ] || complain "$1 holds objects that libdualpipe.so has"
}
quietly "dualplan and dualpipe by pkg-config" $CC ${CFLAGS-} $(pkg-config --cflags dualplan dualpipe) ${LDFLAGS-} -o "$work/both" \
    "$doc/examples/plan/plan.c" $(pkg-config --libs dualplan dualpipe) && both "$work/both"
if command -v cmake >/dev/null 2>&1; then
    cp -R "$doc/examples/plan" "$work/both.d"
    sed -i 's/^find_package(dualplan .*/&\nfind_package(dualpipe REQUIRED)/; s/dualplan::dualplan/& dualpipe::dualpipe/' "$work/both.d/CMakeLists.txt"
    quietly "dualplan and dualpipe by cmake" env CFLAGS="$flags" LDFLAGS="${LDFLAGS-}" cmake -S "$work/both.d" -B "$work/cmake/both" \
        -DCMAKE_PREFIX_PATH="$libdir" && quietly "both: cmake --build" cmake --build "$work/cmake/both" && both "$work/cmake/both/plan"
fi
if command -v "${CXX:-no}" >/dev/null 2>&1 || command -v "${CXX##* }" >/dev/null 2>&1; then
    mkdir "$work/cxx"
    quietly "C++: the attention template" \
        $CXX -x c++ -std=c++20 -Wall -Wextra -Wno-missing-field-initializers -Werror ${CFLAGS-} $(pkg-config --cflags dualpipe) -shared -fPIC \
        ${LDFLAGS-} -o "$work/cxx/dp_attention_mine.so" "$work/attention/attention_mine.c" &&
        quietly "C++: it keeps its contract" dualpipe plugin check "$work/cxx/dp_attention_mine.so" outputs_f64 gradients_f64 &&
        train cxx --attention "$work/cxx/dp_attention_mine.so" &&
        { cmp -s "$work/losses_attention" "$work/losses_cxx" || complain "C++: other losses than the same source in C"; }
    quietly "C++: a trainer" \
        $CXX -std=c++11 -Wall -Wextra -Werror ${CFLAGS-} $(pkg-config --cflags dualpipe) ${LDFLAGS-} -o "$work/trainer" \
        "$DP_TEST_SRCDIR/tests/abi/trainer.cc" $(pkg-config --libs dualpipe) &&
        quietly "C++: it trains" timeout $((60 * scale)) dualpipe run -n 2 -- "$work/trainer" "$(pkg-config --modversion dualpipe)" || :
else
    echo "no C++ compiler: a plugin and a trainer in C++ were not tried (Debian: g++)"
fi

# ---- refused ----

refuse() { # WHAT FILE PATTERN
    if dualpipe plugin check "$2" --list >"$work/log" 2>&1; then
        complain "$1: was taken"
    elif grep -q -e "$3" "$work/log"; then
        echo "ok: $1 is refused: $(grep -e "$3" "$work/log" | head -n 1 | cut -c 1-200)"
    else
        complain "$1: \"$3\" is not in what it says"
    fi
}
mkdir "$work/refused"
sed 's/DP_FAIL(host, /dp_fail(/; s/DP_FAIL(a->host, /dp_fail(/' "$work/attention/attention_mine.c" >"$work/refused/attention.c"
build() { # NAME OPTIONS...
    $CC ${CFLAGS-} -fPIC $(pkg-config --cflags dualpipe) -shared ${LDFLAGS-} -o "$work/refused/dp_attention_$1.so" "$work/refused/attention.c" "$2" $3 -lm
}
build linked -fvisibility=hidden "$libdir/libdualpipe.a -lpthread -ldl"
refuse "a plugin that links libdualpipe.a" "$work/refused/dp_attention_linked.so" 'DP_FAIL(host'
build unlinked -fvisibility=hidden ""
refuse "a plugin that calls dp_fail" "$work/refused/dp_attention_unlinked.so" 'DP_FAIL(host'

finish
