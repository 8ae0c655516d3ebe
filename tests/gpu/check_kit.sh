#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_kit.sh: what `make gpu-kit` packs starts on a machine that has glibc, CUDA's libraries and Python, and no other library: it is
# unpacked elsewhere, and its first call run on the emulated device. The kit takes this build's objects; only what they are linked with is
# other, so that a test costs no second build.
set -eu

fakes=$DP_TEST_BUILDDIR/tests/fake_cuda/.libs
[ -e "$fakes/libcuda_fake.so" ] && [ -x "$DP_TEST_BUILDDIR/bench/gpu_moe" ] || { echo "SKIP: built without CUDA or cuBLASLt" && exit 77; }
case "${CFLAGS-}" in *-fsanitize* | *--coverage*) echo "SKIP: a kit has no sanitizer" && exit 77 ;; esac
for library in check_pic subunit z openblas; do
    printf 'int main(void) { return 0; }\n' | ${CC:-cc} -x c - -o /dev/null "-l:lib$library.a" 2>/dev/null ||
        { echo "SKIP: there is no lib$library.a" && exit 77; }
done
unshare -rm true 2>/dev/null || { echo "SKIP: mount namespaces are not permitted here" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
complain() {
    echo "$*"
    failures=$((failures + 1))
}

MAKEFLAGS='' make -j2 -C "$DP_TEST_BUILDDIR" gpu-kit >"$work/made" 2>&1 || { cat "$work/made" && exit 1; }
mv "$DP_TEST_BUILDDIR/gpu-kit.tar.xz" "$work/"
rm -rf "$DP_TEST_BUILDDIR/gpu-kit"
[ -n "$DP_TEST_CUTLASS" ] || grep -q 'without CUTLASS.*nvidia-cutlass' "$work/made" || complain "it does not say that CUTLASS is missing"

# What a PyTorch image lacks is hidden by an empty file; the build folder and what it is made from by empty folders.
cat >"$work/bare" <<'END'
set -eu
cd "$1"
mkdir fakes empty
cp "$DP_TEST_BUILDDIR"/tests/fake_cuda/.libs/*.so fakes/
: >nothing
for file in $(ldconfig -p | sed -n 's/.* => //p' |
    grep -E '/lib(cairo|subunit|check|openblas|blas|gfortran|mpi|mpich|fabric|jansson|z|pixman|png)[-_a-z0-9.]*\.so'); do
    [ ! -e "$file" ] || mount --bind nothing "$(realpath "$file")" 2>/dev/null || :
done
build=$DP_TEST_BUILDDIR
mount --bind empty "$build"
tar xf gpu-kit.tar.xz
cd libdualpipe-kit
[ ! -e "$build/dualpipe" ]
mkdir -p tests/fake_cuda
mv ../fakes tests/fake_cuda/.libs
for file in dualpipe apps/train_moe/train_moe bench/gpu_* tests/gpu/test_* .libs/*.so; do
    case $file in *.py) continue ;; esac
    ldd "$file" | grep -E -v '^[[:space:]]*(linux-vdso|/.*ld-linux|lib(c|m|dl|pthread|rt|gcc_s|stdc\+\+)\.so\.)' | sed "s|^|$file needs |"
done >../needs
unset DP_TEST_BUILDDIR DP_TEST_SRCDIR DUALPIPE_PLUGIN_PATH DUALPIPE_DEBUG
./first_hour.sh 1 --emulated --short --keep ../kept
END
tar xJOf "$work/gpu-kit.tar.xz" libdualpipe-kit/env.sh >/dev/null || complain "the kit has no env.sh"
status=0
unshare -rm sh "$work/bare" "$work" >"$work/report" 2>&1 || status=$?
[ "$status" -eq 0 ] && grep -q '^p2p\.message' "$work/report" && grep -q '^test_attention_cudnn: ok' "$work/report" ||
    complain "call 1: status $status: $(cat "$work/report")"
[ -s "$work/needs" ] && complain "$(cat "$work/needs")"
grep -Eq '^libcublasLt.so.13 ([0-9]+|MISSING: .*)$' "$work/report" || complain "it does not say which libraries there are"

echo "$failures failures"
[ "$failures" -eq 0 ]
