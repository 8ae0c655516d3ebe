# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# built_pc.sh: examples that want another language's tools, built with their own Makefile from a copy; read with ".". pkg-config
# finds the library of the build folder, as if it were installed.

. "$DP_TEST_SRCDIR/tests/abi/say.sh"
for plugin in comm_shm device_cpu; do
    if [ ! -f "$DP_TEST_BUILDDIR/.libs/dp_$plugin.so" ]; then
        echo "skipped: this build has no $plugin"
        exit 77
    fi
done
case "${CFLAGS-} $CC" in
*-fsanitize* | *aarch64*)
    echo "skipped: libraries of other languages are not built with this compiler's options"
    exit 77
    ;;
esac
mkdir "$work/pc"
cat >"$work/pc/dualpipe.pc" <<END
Name: dualpipe
Description: the library of a build folder
Version: 0.2.0
Cflags: -I$DP_TEST_SRCDIR/include
Libs: -L$work/pc -ldualpipe -lpthread -ldl -lm
END
ln -s "$DP_TEST_BUILDDIR/libdualpipe.a" "$work/pc/libdualpipe.a"
PKG_CONFIG_LIBDIR=$work/pc
PATH=$DP_TEST_BUILDDIR:$PATH
export PKG_CONFIG_LIBDIR PATH
