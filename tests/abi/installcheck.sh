#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# installcheck.sh: what is installed serves an outsider who knows pkg-config alone: a program links and runs, a plugin of
# his own builds and loads, the installed plugins are found by name. Run by make installcheck.
set -eu

: "${DP_INSTALL_PKGCONFIG:?}" "${CC:=cc}"
DESTDIR=${DESTDIR-}
PKG_CONFIG_LIBDIR=$DESTDIR$DP_INSTALL_PKGCONFIG
export PKG_CONFIG_LIBDIR
[ -z "$DESTDIR" ] || { PKG_CONFIG_SYSROOT_DIR=$DESTDIR; export PKG_CONFIG_SYSROOT_DIR; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/trainer.c" <<'C'
#include <dualpipe/dualpipe.h>
#include <dualpipe/plugin.h>
#include <stdio.h>
#include <string.h>

/* The version that pkg-config gave, then plugins to load: paths or names. */
int main(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], dp_version()) != 0) {
        fprintf(stderr, "version %s\n", dp_version());
        return 1;
    }
    for (int i = 2; i < argc; i++) {
        const dp_plugin_t *plugin = NULL;

        if (dp_plugin_load(argv[i], &plugin) != DP_OK) {
            fprintf(stderr, "%s: %s\n", argv[i], dp_last_error());
            return 1;
        }
        printf("%s %s: %s\n", plugin->name, plugin->version, plugin->summary);
    }
    return 0;
}
C
cat >"$work/outsider.c" <<'C'
#include <dualpipe/plugin.h>

static const void *get_interface(const char *id)
{
    (void)id;
    return 0;
}

DP_PLUGIN_DEFINE(outsider) = {DP_PLUGIN_HEAD, "outsider", "1", "built outside the tree", 0, 0, get_interface};
C

cflags=$(pkg-config --cflags dualpipe)
$CC ${CFLAGS-} $cflags ${LDFLAGS-} -o "$work/trainer" "$work/trainer.c" $(pkg-config --static --libs dualpipe)
$CC ${CFLAGS-} $cflags -fPIC -shared ${LDFLAGS-} -o "$work/dp_outsider.so" "$work/outsider.c"

names=
plugindir=$(pkg-config --variable=plugindir dualpipe)
for la in ${DP_TEST_PLUGINS-}; do
    name=${la%.la}
    if [ -e "$DESTDIR$plugindir/$la" ]; then
        echo "$la was installed: nobody needs it"
        exit 1
    fi
    if [ -n "$DESTDIR" ]; then
        names="$names $DESTDIR$plugindir/$name.so"
    else
        names="$names ${name#dp_}" # found where configure said, without DUALPIPE_PLUGIN_PATH
    fi
done
unset DUALPIPE_PLUGIN_PATH
umask 022
chmod go-w "$work"/*.so
"$work/trainer" "$(pkg-config --modversion dualpipe)" "$work/dp_outsider.so" $names
echo "installed in $(pkg-config --variable=prefix dualpipe): a program and $(echo "$work"/*.so $names | wc -w) plugins work"
