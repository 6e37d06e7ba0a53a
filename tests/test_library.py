"""Which backend computes, how it is chosen, and what is said when it can't be."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from helpers import SOURCE, check_python, contract, random_gain, random_rows, run_python

import latentkv
from latentkv import _library

SHOW = "from latentkv import _library as l; print(l.backend(), l.instruction_set())"


@pytest.fixture(scope="module")
def without_kernels(tmp_path_factory):
    """The package as it is where there was no compiler."""
    parent = tmp_path_factory.mktemp("plain")
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(SOURCE, parent / "latentkv", ignore=ignored)
    return parent


@pytest.fixture
def broken_kernels(without_kernels, tmp_path):
    shutil.copytree(without_kernels, tmp_path, dirs_exist_ok=True)
    (tmp_path / "latentkv" / "_kernels_cpu.abi3.so").write_bytes(b"not a library")
    return tmp_path


def test_the_kernels_are_what_is_tested():
    # Otherwise every bit test here would compare the definition with itself.
    forced = os.environ.get("LATENTKV_BACKEND")
    if forced:
        assert _library.backend() == forced
    elif shutil.which("g++") or shutil.which("c++"):
        assert _library.backend() == "cpu", "build them: python setup.py build_ext --inplace"
    if _library.backend() == "cpu":
        assert _library.instruction_sets()[-1] == "baseline"
        assert _library.instruction_set() in _library.instruction_sets()


@pytest.mark.skipif(_library.backend() != "cpu", reason="there are no compiled kernels")
def test_the_best_instruction_set_is_used():
    expected = {
        "AVX512": ("avx512", "avx2", "baseline"),
        "AVX2": ("avx2", "baseline"),
    }.get(torch.backends.cpu.get_cpu_capability())
    if expected:  # torch and the system looked at the same processor by their own means
        flags = Path("/proc/cpuinfo").read_text().split()
        converts = "AVX512" in expected[0].upper() and "avx512_bf16" in flags
        assert _library.instruction_sets() == (("avx512_bf16",) if converts else ()) + expected
    out = check_python(SHOW)
    assert out.split() == ["cpu", _library.instruction_sets()[0]]


def test_forcing_the_definition():
    assert check_python(SHOW, LATENTKV_BACKEND="definition").split() == ["definition", "none"]


@pytest.mark.skipif(_library.backend() != "cpu", reason="there are no compiled kernels")
def test_forcing_the_kernels():
    assert check_python(SHOW, LATENTKV_BACKEND="cpu").split()[0] == "cpu"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("triton", "LATENTKV_BACKEND=triton: this version has no Triton kernels"),
        ("nonsense", "LATENTKV_BACKEND=nonsense: must be one of cpu, definition"),
        ("CPU", "LATENTKV_BACKEND=CPU: must be one of cpu, definition"),
    ],
)
def test_forcing_what_is_not_there(value, words):
    # The second try says the same: a failed import must not leave half an operator library.
    code = (
        "import latentkv\n"
        "for _ in range(2):\n"
        "    try: latentkv.rms_norm\n"
        "    except (RuntimeError, ValueError) as error: print(error)\n"
        "    else: raise SystemExit('imported')"
    )
    assert check_python(code, LATENTKV_BACKEND=value).splitlines() == [words] * 2


def test_no_kernels_is_one_warning_and_right(without_kernels):
    code = (
        "import warnings\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import latentkv, latentkv.ops, latentkv.nn\n"
        "    from helpers import contract, hex_bits, random_gain, random_rows\n"
        "    x, gain, rule = random_rows(3, 576)[:, :512], random_gain(512), contract(512)\n"
        "    y = latentkv.rms_norm(x, gain, rule)\n"
        "    y = latentkv.rms_norm(x, gain, rule)\n"
        "mine = [w for w in caught if 'latentkv' in str(w.message)]\n"
        "assert len(mine) == 1, mine\n"
        "assert mine[0].category is RuntimeWarning\n"
        "print(mine[0].message)\n"
        "print(latentkv._library.backend(), latentkv.__file__)\n"
        "print(hex_bits(y))"
    )
    warning, where, y = check_python(code, package=without_kernels).splitlines()
    assert "definition" in warning and "C++ compiler" in warning
    assert "--no-build-isolation" in warning
    assert where.split()[0] == "definition" and str(without_kernels) in where
    x, gain = random_rows(3, 576)[:, :512], random_gain(512)
    mine = latentkv.rms_norm(x, gain, contract(512)).view(torch.int16).flatten().tolist()
    assert json.loads(y) == [v & 0xFFFF for v in mine]


def test_the_warning_is_visible_by_default(without_kernels):
    done = run_python("import latentkv.ops", package=without_kernels)
    assert done.returncode == 0 and done.stderr.count("RuntimeWarning") == 1, done.stderr
    quiet = run_python(
        "import latentkv.ops", package=without_kernels, LATENTKV_BACKEND="definition"
    )
    assert quiet.returncode == 0 and quiet.stderr == ""


def test_forcing_kernels_that_are_not_built(without_kernels):
    done = run_python("import latentkv.ops", package=without_kernels, LATENTKV_BACKEND="cpu")
    assert done.returncode == 1
    assert "LATENTKV_BACKEND=cpu: the kernels are not built: install a C++" in done.stderr


@pytest.mark.parametrize("forced", ["", "cpu"])
def test_kernels_that_do_not_load(broken_kernels, forced):
    done = run_python("import latentkv.ops", package=broken_kernels, LATENTKV_BACKEND=forced)
    assert done.returncode == 1
    last = [line for line in done.stderr.splitlines() if line.startswith("ImportError")]
    assert last and "don't load with torch" in last[0]
    assert "reinstall latentkv with --no-build-isolation" in last[0]
    assert "LATENTKV_BACKEND=definition" in last[0]
    remedy = check_python(SHOW, package=broken_kernels, LATENTKV_BACKEND="definition")
    assert remedy.split() == ["definition", "none"]


@pytest.mark.skipif(_library.backend() != "cpu", reason="there are no compiled kernels")
def test_instruction_set_by_environment():
    for name in _library.instruction_sets():
        assert check_python(SHOW, LATENTKV_INSTRUCTION_SET=name).split() == ["cpu", name]


def test_unknown_instruction_sets():
    before = _library.instruction_set()
    for name in ("avx1024", "", "AVX2", "baseline "):
        with pytest.raises(ValueError, match="is not available here; there is"):
            _library.use_instruction_set(name)
        with pytest.raises(ValueError, match="is not available here"):
            with _library.using_instruction_set(name):
                pass
    assert _library.instruction_set() == before
    done = run_python("import latentkv.ops", LATENTKV_INSTRUCTION_SET="avx1024")
    assert done.returncode == 1 and "instruction set 'avx1024' is not available" in done.stderr


@pytest.mark.skipif(_library.backend() != "cpu", reason="there are no compiled kernels")
def test_instruction_set_for_a_block():
    before = _library.instruction_set()
    for name in _library.instruction_sets():
        with pytest.raises(KeyError):
            with _library.using_instruction_set(name):
                assert _library.instruction_set() == name
                raise KeyError
        assert _library.instruction_set() == before


def test_an_instruction_set_of_the_definition():
    done = run_python(SHOW, LATENTKV_BACKEND="definition", LATENTKV_INSTRUCTION_SET="baseline")
    assert done.returncode == 1 and "none, since the definition computes" in done.stderr


def test_importing_torch_late():
    # The operators register on first use, and only then.
    check_python(
        "import latentkv, sys\n"
        "assert 'torch' not in sys.modules\n"
        "latentkv.rms_norm\n"
        "import torch\n"
        "assert torch.ops.latentkv.rms_norm.default._schema"
    )


def test_schemas():
    # Written down elsewhere too (exported programs): they don't change silently.
    rows = "Tensor down, Tensor gain, Tensor? positions, Tensor? table"
    numerics = "float eps, str order, str rope, str rule, int group"
    right = {
        "rms_norm": "(Tensor x, Tensor gain, float eps, str order) -> Tensor",
        "rms_norm_fwd": "(Tensor x, Tensor gain, float eps, str order) -> (Tensor y, Tensor rstd)",
        "rms_norm_bwd": "(Tensor dy, Tensor x, Tensor gain, Tensor rstd, str order) "
        "-> (Tensor dx, Tensor dgain)",
        "add_rms_norm": "(Tensor x, Tensor residual, Tensor gain, float eps, str order) "
        "-> (Tensor y, Tensor sum)",
        "add_rms_norm_fwd": "(Tensor x, Tensor residual, Tensor gain, float eps, str order) "
        "-> (Tensor y, Tensor sum, Tensor rstd)",
        "add_rms_norm_bwd": "(Tensor dy, Tensor? dsum, Tensor x, Tensor residual, Tensor gain, "
        "Tensor rstd, str order) -> (Tensor dx, Tensor dgain)",
        "compress_kv": f"({rows}, {numerics}) -> (Tensor latent, Tensor key)",
        "compress_kv_fwd": f"({rows}, {numerics}) -> (Tensor latent, Tensor key, Tensor rstd)",
        "compress_kv_bwd": "(Tensor? dlatent, Tensor? dkey, Tensor down, Tensor gain, Tensor rstd, "
        "Tensor? positions, Tensor? table, str order, str rope) -> (Tensor ddown, Tensor dgain)",
        "write_kv": f"(Tensor(a!) cache, Tensor slots, {rows}, {numerics}) -> ()",
    }
    declared = {
        schema.name.removeprefix("latentkv::"): str(schema).removeprefix(schema.name)
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("latentkv::")
    }
    assert declared == right
