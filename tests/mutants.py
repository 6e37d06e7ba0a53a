"""Plant faults in a copy of the kernels and demand that the tests notice: ``make mutants``.

A bit test proves nothing until it has been seen to fail. Each mutant is one textual change to a
copy of this tree, built in place there, with the tests of that copy run on it. A mutant that
survives, a pattern that no longer occurs, or a run that ends in anything but failed tests is an
error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KERNELS = Path("src/latentkv/kernels/cpu")
# The seconds of the suite in which every promise of the kernels occurs.
SUITE = (
    "tests/cases",
    "tests/test_guards.py",
    "tests/test_kernels.py::test_any_leading_strides",
    "tests/test_kernels.py::test_every_small_width",
    "tests/test_path.py::test_the_models_sizes",
    "tests/test_cache_slots.py::test_padding_rows_change_nothing",
    "tests/test_backward.py::test_every_dtype",
    "tests/test_backward.py::test_a_gain_gradient_known_by_heart",
)


class BrokenScriptError(Exception):
    """The script itself, or the tree that it was given, is at fault."""


@dataclass(frozen=True)
class Mutant:
    """One fault: in each of ``files``, ``old`` occurs once and becomes ``new``."""

    name: str
    files: tuple[str, ...]
    old: str
    new: str


# A fault in a vec_*.inc goes into the file of the instruction set that runs here: see `best`.
MUTANTS = (
    Mutant(
        "order swapped",
        ("norm_rows.inc",),
        "if constexpr (kOrder == Order::cast_then_gain) n =",
        "if constexpr (kOrder == Order::gain_then_cast) n =",
    ),
    Mutant(
        "blocks summed in sequence",
        ("rows.inc",),
        "for (int64_t n = count_++; n & 1; n >>= 1) sum = level_[level++] + sum;",
        "if (count_) sum = level_[0] + sum; count_ = 1;",
    ),
    Mutant(
        "eps from elsewhere",
        ("norm_rows.inc",),
        "const Quad v = mean + eps;",
        "const Quad v = mean + 1e-5f + 0.0f * eps;",
    ),
    # What is added before the cut no longer carries (but for one pattern in 65,536).
    Mutant("truncating store", ("vec_{best}.inc",), "0x7fff", "0"),
    Mutant(
        "neighbour row read",
        ("norm_rows.inc",),
        "rows[k].row = row_of<In, false>(call, first + k);",
        "rows[k].row = row_of<In, false>(call, first + k / 2 * 2);",  # the row before an odd one
    ),
    Mutant(
        "gain applied twice in dx",
        ("norm_backward.inc",),
        "(dy * gain - normal * both(c))",
        "(dy * gain * gain - normal * both(c))",
    ),
    Mutant(
        "interleaved for half",
        ("key_rows.inc",),
        "case Rotation::half_each_step: return turn_key<In, true, true>;",
        "case Rotation::half_each_step: return turn_key<In, false, true>;",
    ),
    Mutant(
        "scale not a power of two",
        ("quant_rows.inc",),
        "return float_of(((bits >> 23) + ((bits & 0x7fffff) != 0)) << 23);",
        "return float_of(bits);",
    ),
    Mutant(
        "slot -1 written to slot 0",
        ("path_job.h",),
        "slots.data ? slots.at(run.offsets[kSlots] + i * strides[kSlots]) : 0;",
        "slots.data ? std::max<int64_t>(0, slots.at(run.offsets[kSlots]"
        " + i * strides[kSlots])) : 0;",
    ),
    Mutant(
        "row missing from dgamma",
        ("norm_backward.inc",),
        "(share[0] + share[1]) + (share[2] + share[3])",
        "(share[0] + share[1]) + share[2]",
    ),
)


def main() -> int:
    best = instruction_set()
    survivors = 0
    print(f"mutants of the {best} kernels", flush=True)
    outcome = run(None, best)
    if outcome.returncode != 0:
        raise BrokenScriptError(f"the tests fail on the kernels as they are:\n{outcome.stdout}")
    print(f"{'as it is':<26} passes: {last_line(outcome.stdout)}", flush=True)
    # A build and most of the tests use one core each.
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        outcomes = list(pool.map(lambda mutant: run(mutant, best), MUTANTS))
    for mutant, outcome in zip(MUTANTS, outcomes, strict=True):
        if outcome.returncode == 0:
            survivors += 1
            print(f"{mutant.name:<26} SURVIVES", flush=True)
            continue
        failed = re.search(r"^FAILED (\S+.*?)( - |$)", outcome.stdout, re.MULTILINE)
        if outcome.returncode != 1 or not failed:  # 2 to 5: no test failed, pytest did
            raise BrokenScriptError(f"{mutant.name}: no failed test:\n{outcome.stdout}")
        print(f"{mutant.name:<26} caught by {failed.group(1)}", flush=True)
    return 1 if survivors else 0


def instruction_set() -> str:
    """The one that the kernels choose on this processor."""
    code = "from latentkv import _library; print(_library.instruction_set())"
    done = python(ROOT, "-c", code)
    name = done.stdout.strip()
    if done.returncode != 0 or name == "none":
        raise BrokenScriptError(f"there are no compiled kernels to mutate:\n{done.stderr}")
    return name


def run(mutant: Mutant | None, best: str) -> subprocess.CompletedProcess[str]:
    """Copy the tree, plant the fault, build, and run the tests until one fails."""
    with tempfile.TemporaryDirectory(prefix="latentkv-mutant-") as folder:
        tree = Path(folder) / "latentkv"
        tree.mkdir()
        copy(tree)
        if mutant:
            plant(mutant, tree / KERNELS, best)
        built = python(tree, "setup.py", "-q", "build_ext", "--inplace")
        if built.returncode != 0:
            raise BrokenScriptError(f"{mutant}: does not build:\n{built.stdout}{built.stderr}")
        where = python(
            tree, "-c", "import latentkv._library as l; print(l.__file__, l.instruction_set())"
        )
        package = str(tree / "src" / "latentkv" / "_library.py")
        if where.stdout.split() != [package, best]:
            raise BrokenScriptError(f"the tests would run {where.stdout}{where.stderr}, not {tree}")
        return python(tree, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--tb=line", *SUITE)


def copy(tree: Path) -> None:
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, tree / name)


def plant(mutant: Mutant, kernels: Path, best: str) -> None:
    for name in mutant.files:
        # avx512_bf16 is compiled from avx512's file
        path = kernels / name.format(best=best.removesuffix("_bf16"))
        replace_once(path, mutant.old, mutant.new, mutant.name)


def replace_once(path: Path, old: str, new: str, name: str) -> None:
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise BrokenScriptError(f"{name}: {old!r} occurs {text.count(old)} times in {path.name}")
    path.write_text(text.replace(old, new), encoding="utf-8")


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """This interpreter in ``folder``, importing the package from there."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("LATENTKV_")}
    env["OMP_WAIT_POLICY"] = "passive"  # the others need the cores meanwhile
    env["PYTHONPATH"] = str(folder / "src")
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenScriptError as error:
        sys.exit(f"mutants: {error}")
