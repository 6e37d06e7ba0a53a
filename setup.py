"""The compiled kernels, where a C++ compiler is there. Everything else stands in pyproject.toml."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("src/latentkv/kernels/cpu")


def compiler() -> str | None:
    """The C++ compiler to build with, or None where none was asked for and none is installed."""
    asked = os.environ.get("CXX")
    command = asked or sysconfig.get_config_var("CXX") or "c++"
    program = shlex.split(command)[0]
    if shutil.which(program):
        return command
    if asked:
        sys.exit(f"latentkv: CXX={asked} names no program; unset it or name a C++ compiler")
    return shutil.which("g++") or shutil.which("c++")


def kernels() -> list[Extension]:
    command = compiler()
    if command is None:
        print("latentkv: no C++ compiler found: installing without the compiled kernels")
        return []
    try:
        import torch
        from torch.utils.cpp_extension import include_paths, library_paths
    except ImportError as error:
        sys.exit(
            f"latentkv: the kernels are compiled against the torch you run, and {error}: "
            "install torch first, then run pip with --no-build-isolation"
        )
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
        sys.exit(f"latentkv: torch {torch.__version__} is older than 2.10")
    os.environ["CXX"] = command  # setuptools compiles and links C++ with it
    return [
        Extension(
            "latentkv._kernels_cpu",
            sources=[str(SOURCES / name) for name in ("binding.cpp", "core.cpp")],
            depends=[str(path) for path in sorted(SOURCES.glob("*.[hi]*"))],
            include_dirs=include_paths(),
            library_dirs=library_paths(),
            libraries=["torch_cpu", "torch"],
            define_macros=[("TORCH_TARGET_VERSION", "0x020a000000000000")],
            extra_compile_args=[
                "-std=c++20",
                "-O3",
                "-g0",
                # Contraction would fuse a*b+c into one rounding wherever the target has FMA.
                "-ffp-contract=off",
                "-fno-math-errno",
                "-fvisibility-inlines-hidden",
                # GCC 12 warns of its own AVX-512 header: 8,000 lines.
                "-Wno-uninitialized",
                "-Wno-maybe-uninitialized",
            ],
            py_limited_api=True,
            language="c++",
        )
    ]


setup(ext_modules=kernels(), options={"bdist_wheel": {"py_limited_api": "cp310"}})
