#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_exports.sh: every plugin exports dp_plugin_entry and nothing else, needs no symbol of ours, and stays mapped.
set -eu

failures=0
seen=0
complain() {
    echo "$module: $*"
    failures=$((failures + 1))
}

for la in $DP_TEST_PLUGINS; do
    module=$DP_TEST_BUILDDIR/.libs/${la%.la}.so
    seen=$((seen + 1))
    if [ ! -f "$module" ]; then
        complain "was not built"
        continue
    fi
    exports=$($NM -D --defined-only "$module" | awk '{print $NF}' | sort)
    [ "$exports" = dp_plugin_entry ] || complain "exports" $exports
    ours=$($NM -D --undefined-only "$module" | awk '$NF ~ /^dp_/ {print $NF}')
    [ -z "$ours" ] || complain "needs" $ours
    if readelf -d "$module" | grep -q 'NEEDED.*dualpipe'; then
        complain "links libdualpipe"
    fi
    readelf -d "$module" | grep -q 'FLAGS_1.*NODELETE' || complain "is not marked NODELETE"
done

if [ "$seen" -eq 0 ]; then
    echo "no plugin is part of this configuration"
    exit 77
fi
echo "$seen plugins, $failures failures"
[ "$failures" -eq 0 ]
