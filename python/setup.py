# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
"""Builds libdualplan, the rooms of the library that plan and never run, into libdualpipe/libdualplan.so.

The sources are those of the tree this folder lies in; a source distribution carries them in csrc/. CC, CFLAGS and LDFLAGS
are heeded, so that a cross compiler builds for another machine (with _PYTHON_HOST_PLATFORM=linux-aarch64, say).
"""
import os
import re
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist


HERE = Path(__file__).resolve().parent
TREE = HERE / "csrc" if (HERE / "csrc").is_dir() else HERE.parent
ROOMS = ("base", "schedule", "program", "timeline", "simulate", "overlap", "search", "trace", "model", "eplb")
IO = ("cost_keys", "input")


def sources():
    return [HERE / "src" / "costs.c", *(TREE / "tools" / "io" / f"{name}.c" for name in IO),
            *(file for room in ROOMS for file in sorted((TREE / "libdualpipe" / room).glob("*.c")))]


def compile_library(objects: Path, library: Path):
    compiler = shlex.split(os.environ.get("CC", "cc"))
    flags = "-std=gnu11 -O3 -fPIC -fvisibility=hidden -ffp-contract=off -D_GNU_SOURCE".split()
    flags += [f"-ffile-prefix-map={TREE}=."]  # wherever it is built, the same bytes
    flags += [f"-I{TREE / 'include'}", f"-I{TREE / 'libdualpipe'}", f"-I{TREE}", f"-I{objects}"]
    flags += shlex.split(os.environ.get("CFLAGS", ""))
    objects.mkdir(parents=True, exist_ok=True)
    (objects / "config.h").touch()  # nothing was found: Python unpacks gzip

    def one(source):
        target = objects / f"{source.parent.name}-{source.stem}.o"
        subprocess.run([*compiler, *flags, "-c", str(source), "-o", str(target)], check=True)
        return str(target)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = list(pool.map(one, sources()))
    subprocess.run(
        [*compiler, *flags, "-shared", "-Wl,-z,defs", "-Wl,--as-needed", "-Wl,-soname,libdualplan.so",
         f"-Wl,--version-script={TREE / 'libdualpipe' / 'libdualpipe.map'}", *made, "-o", str(library),
         *shlex.split(os.environ.get("LDFLAGS", "")), "-lm"],
        check=True)


class BuildLibrary(build_py):
    def run(self):
        super().run()
        folder = Path(self.build_lib) / "libdualpipe"
        folder.mkdir(parents=True, exist_ok=True)
        objects = Path(self.get_finalized_command("build").build_temp) / "csrc"
        compile_library(objects, folder / "libdualplan.so")


class CarryTree(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        carried = Path(base_dir) / "csrc"
        for part in ["include/dualpipe", "tools/io", *(f"libdualpipe/{room}" for room in ROOMS)]:
            shutil.copytree(TREE / part, carried / part, ignore=shutil.ignore_patterns("Makefile.inc", "*.o", ".*"),
                            dirs_exist_ok=True)
        shutil.copy(TREE / "libdualpipe" / "libdualpipe.map", carried / "libdualpipe")
        shutil.copy(HERE / "src" / "costs.c", Path(base_dir) / "src")
        for name in ("LICENSE",):
            shutil.copy((HERE if (HERE / name).exists() else TREE) / name, base_dir)


class AnyPython(bdist_wheel):
    def get_tag(self):  # the library is the machine's, and no Python's; it needs the newest glibc that a symbol of it names (PEP 600)
        platform = super().get_tag()[2]
        library = Path(self.get_finalized_command("build_py").build_lib) / "libdualpipe" / "libdualplan.so"
        needed = re.findall(rb"\0GLIBC_2\.(\d+)(?=[\0.])", library.read_bytes())
        if needed and platform.startswith("linux_"):
            platform = f"manylinux_2_{max(map(int, needed))}_{platform[len('linux_'):]}"
        return "py3", "none", platform


class WithLibrary(Distribution):
    def has_ext_modules(self):
        return True


setup(distclass=WithLibrary, cmdclass={"build_py": BuildLibrary, "sdist": CarryTree, "bdist_wheel": AnyPython})
