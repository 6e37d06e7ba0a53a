"""The compiled kernels, where a C++ compiler is there. Everything else stands in pyproject.toml."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

PACKAGE = Path("src/latentkv")
SOURCES = PACKAGE / "kernels" / "cpu"
SOURCE_NAMES = ("binding.cpp", "binding_backward.cpp", "binding_path.cpp", "core.cpp")
OLDEST_TORCH = (2, 10)


def compiler() -> str | None:
    """The C++ compiler's command, or None where none is asked for and none is installed."""
    asked = os.environ.get("CXX", "").strip()
    if asked:
        if shutil.which(shlex.split(asked)[0]) is None:
            sys.exit(f"latentkv: CXX={asked} names no program: unset it or name a C++ compiler")
        return asked
    for command in (sysconfig.get_config_var("CXX"), "g++", "c++", "clang++"):
        if command and shutil.which(shlex.split(command)[0]):
            return str(command)
    return None


def torch_folders() -> tuple[list[str], list[str]]:
    """The folders of the installed torch's headers and libraries."""
    try:
        import torch
        from torch.utils.cpp_extension import include_paths, library_paths
    except ImportError as error:
        sys.exit(
            f"latentkv: the kernels are compiled against the torch you run, and {error}: "
            "install torch first, then run pip install with --no-build-isolation"
        )
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        sys.exit(f"latentkv: torch {torch.__version__} is too old, install torch {oldest} or later")
    return include_paths(), library_paths()


class BuildPython(build_py):
    def run(self) -> None:
        if self.editable_mode:
            # An editable install loads what lies here: never the kernels of earlier sources.
            for earlier in PACKAGE.glob("_kernels_cpu*.so"):
                earlier.unlink()
        super().run()


class BuildKernels(build_ext):
    def run(self) -> None:
        include, library = torch_folders()
        self.include_dirs += include
        self.library_dirs += library
        self.force = True  # the flags, the compiler or torch may have changed, not only a source
        os.environ["CXX"] = compiler() or ""  # setuptools compiles and links C++ with it
        super().run()


KERNELS = Extension(
    "latentkv._kernels_cpu",
    sources=[str(SOURCES / name) for name in SOURCE_NAMES],
    libraries=["torch_cpu", "torch"],
    define_macros=[("TORCH_TARGET_VERSION", "0x020a000000000000")],
    extra_compile_args=[
        "-std=c++20",
        "-O3",
        "-g0",
        # First, since it resets others: CFLAGS may hold -ffast-math, which reorders sums.
        "-fno-fast-math",
        # Contraction would fuse a*b+c into one rounding wherever the target has FMA.
        "-ffp-contract=off",
        "-fno-math-errno",
        "-fvisibility-inlines-hidden",
        # GCC 12 warns of its own AVX-512 header: 8,000 lines.
        "-Wno-uninitialized",
        "-Wno-maybe-uninitialized",
    ],
    # Linked with -ffast-math or -Ofast, loading would flush the whole process's subnormals.
    extra_link_args=["-O3", "-fno-fast-math"],
    py_limited_api=True,  # no Python in it at all: torch loads it
    language="c++",
)


def main() -> None:
    kernels = [KERNELS] if compiler() else []
    if not kernels:
        print("latentkv: no C++ compiler found: installing without the compiled kernels")
    # A free-threaded Python has no limited API to claim.
    abi3 = kernels and not sysconfig.get_config_var("Py_GIL_DISABLED")
    setup(
        ext_modules=kernels,
        cmdclass={"build_ext": BuildKernels, "build_py": BuildPython},
        options={"bdist_wheel": {"py_limited_api": "cp310"}} if abi3 else {},
    )


if __name__ == "__main__":
    main()
