"""What several test files share: inputs that can show a fault, and the comparison."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path

import torch

import latentkv
from latentkv import NormContract, _library, bits

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
PAIRS = tuple(product(DTYPES, DTYPES))  # (input, gain)
# "none": the definition computes (LATENTKV_BACKEND=definition, or no compiler). The same tests
# then hold of it, so nothing is skipped; test_library.py asserts which backend should be there.
INSTRUCTION_SETS = _library.instruction_sets() or ("none",)
ORDERS = ("cast_then_gain", "gain_then_cast")

# The public documents, beside the checkout where it is developed; a clone elsewhere lacks them.
SHARED = Path(__file__).parents[2] / "shared"
NO_SHARED = f"the project's shared documents are not beside this checkout ({SHARED.name}/)"

SOURCE = Path(latentkv.__file__).parent


def name_of(value: object) -> str:
    """A test id that a person can read."""
    if isinstance(value, tuple):
        return "-".join(map(name_of, value))
    return str(value).removeprefix("torch.")


def contract(width: int, order: str = "cast_then_gain", eps: float = 1e-6) -> NormContract:
    return NormContract(width, eps, order)  # type: ignore[arg-type]


def random_rows(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """Normals, each row on a scale of its own: rows of one size can't show a mix-up of rows."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator)
    # 2^-6 to 2^4: eps = 1e-6 stays visible in the small ones, and no fp16 value overflows.
    exponents = torch.randint(-6, 5, (*shape[:-1], 1), generator=generator)
    return (values * torch.exp2(exponents.float())).to(dtype)


def random_gain(width: int, dtype: torch.dtype = torch.bfloat16, seed: int = 1) -> torch.Tensor:
    """0.5 to 1.5 with a few negative: a power of two is blind to the order of gain and cast."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(width, generator=generator) + 0.5
    values[::7] *= -1
    return values.to(dtype)


def lazily_mapped(elements: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Zeros that take memory only where they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = mmap.mmap(-1, elements * dtype.itemsize, flags=flags)
    return torch.frombuffer(memory, dtype=dtype)


def output_dtype(x: torch.dtype, gain: torch.dtype, order: str) -> torch.dtype:
    return torch.promote_types(x, gain) if order == "cast_then_gain" else x


def assert_same(actual: torch.Tensor, expected: torch.Tensor, what: str = "") -> None:
    """Shape, dtype and every bit; a failure says how many differ and where the first is."""
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    assert actual.dtype == expected.dtype, (what, actual.dtype, expected.dtype)
    wrong = bits.differing(actual, expected)
    if bool(wrong.any()):
        first = tuple(wrong.nonzero()[0].tolist())
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.numel()} differ, first at {first}: "
            f"{actual[first].item()!r}, should be {expected[first].item()!r}"
        )


def share_and_ulp(actual: torch.Tensor, expected: torch.Tensor) -> tuple[float, int]:
    """The share of differing elements and the largest distance."""
    distance = bits.ulp_distance(actual, expected)
    return (distance != 0).double().mean().item(), int(distance.max())


def on_each_instruction_set(function: Callable[[str], object]) -> None:
    """Call it with each instruction set in use: the definition's answer is computed once."""
    for name in INSTRUCTION_SETS:
        if name == "none":
            function(name)
            continue
        with _library.using_instruction_set(name):
            function(name)


def from_bits(patterns: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
    """Floats by their bit patterns."""
    integers = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    size = 1 << (8 * dtype.itemsize)
    signed = [p - size if p >= size // 2 else p for p in patterns]
    return torch.tensor(signed, dtype=integers).view(dtype)


def hex_bits(value: torch.Tensor) -> list[int]:
    """The bit patterns of a bf16, fp16 or fp32 tensor."""
    integers = {2: torch.int16, 4: torch.int32}[value.element_size()]
    mask = (1 << (8 * value.element_size())) - 1
    return [v & mask for v in value.contiguous().view(integers).flatten().tolist()]


def run_python(
    code: str, *arguments: str, package: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter with this package (or the copy in ``package``) and these variables."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("LATENTKV_")}
    env["PYTHONPATH"] = os.pathsep.join([str(package or SOURCE.parent), str(Path(__file__).parent)])
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.run(
        [sys.executable, *arguments, "-c", code],
        env=env | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def check_python(code: str, *arguments: str, **options: object) -> str:
    """`run_python`, and it must succeed. Returns what it printed."""
    done = run_python(code, *arguments, **options)  # type: ignore[arg-type]
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
