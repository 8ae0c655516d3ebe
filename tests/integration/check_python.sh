#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_python.sh: the Python package: source distribution, wheel from it, installed into a separate environment, its tests there.
# The environment (pip, pytest, numpy, pandas, mypy) is made once, in the build folder.
set -eu

package=$DP_TEST_SRCDIR/python
venv=$DP_TEST_BUILDDIR/python-venv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset CFLAGS LDFLAGS # a library with a sanitizer needs a python with it

if [ ! -e "$venv/complete-2" ]; then
    rm -rf "$venv"
    if ! python3 -m venv "$venv" >"$work/log" 2>&1; then
        echo "skipped: no python3 with venv (Debian: python3-venv)"
        exit 77
    fi
    if ! timeout 120 "$venv/bin/pip" -q --retries 1 --timeout 10 install -U setuptools pytest numpy pandas mypy >"$work/log" 2>&1; then
        echo "skipped: PyPI is out of reach: $(tail -n 1 "$work/log")"
        exit 77
    fi
    touch "$venv/complete-2"
fi
PATH=$venv/bin:$PATH
PIP_DISABLE_PIP_VERSION_CHECK=1
export PATH PIP_DISABLE_PIP_VERSION_CHECK

cp -R "$package" "$work/python"
ln -s "$DP_TEST_SRCDIR/include" "$DP_TEST_SRCDIR/libdualpipe" "$DP_TEST_SRCDIR/tools" "$DP_TEST_SRCDIR/LICENSE" "$work/"
sh "$work/python/wheels" "$work/dist"
if [ "${DP_TEST_LONG:-0}" = 1 ]; then
    sh "$work/python/wheels" "$work/again"
    for file in "$work/dist"/*; do
        cmp "$file" "$work/again/${file##*/}" || { echo "${file##*/}: a second time it is another one"; exit 1; }
    done
fi
wheel=$(ls "$work/dist"/libdualpipe-*-py3-none-manylinux_2_*_"$(uname -m)".whl)
pip -q install --force-reinstall --no-deps "$wheel"

cd "$work" # not beside the sources
library=$(python -c 'import libdualpipe._library as l; print(l.lib._name)')
glibc=$(readelf -V "$library" | grep -o 'GLIBC_2\.[0-9]*' | sed 's/.*\.//' | sort -n | tail -n 1)
case $wheel in
*_2_"${glibc}"_*) ;;
*) echo "$wheel takes glibc 2.$glibc"; exit 1 ;;
esac
foreign=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -v -E '^(libc|libm|ld-linux.*)\.so\.' || :)
[ -z "$foreign" ] || { echo "the package needs" $foreign; exit 1; }
foreign=$(${NM:-nm} -D --defined-only "$library" | awk '$2 == "T" && $3 !~ /^dp_[a-z0-9]/ { print $3 }')
[ -z "$foreign" ] || { echo "the package offers" $foreign; exit 1; }
pytest -q -p no:cacheprovider "$package/tests"
mypy --strict --cache-dir "$work/mypy" "$package/src/libdualpipe"
python -m libdualpipe compare --ranks 4 --microbatches 8 | grep -q '^dualpipev'

# DeepSeek's package is dualpipe in pip and in import; both stay whole beside each other.
mkdir -p "$work/theirs/dualpipe"
echo 'class DualPipe: pass' >"$work/theirs/dualpipe/__init__.py"
echo 'from setuptools import setup; setup(name="dualpipe", version="1.0.0", packages=["dualpipe"])' >"$work/theirs/setup.py"
both='import dualpipe, libdualpipe; dualpipe.DualPipe(); assert libdualpipe.schedule("dualpipe", 4, 8).ranks == 4'
pip -q install --no-build-isolation --no-deps "$work/theirs"
python -c "$both"
pip -q install --force-reinstall --no-deps "$wheel"
python -c "$both"
pip -q uninstall -y libdualpipe
python -c 'import dualpipe; dualpipe.DualPipe()'
pip -q uninstall -y dualpipe
