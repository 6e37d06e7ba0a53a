"""What an installed latentkv must do: python installed.py BACKEND, run outside the checkout."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch  # here: what it may warn of is not latentkv's


def main() -> None:
    backend = sys.argv[1]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import latentkv.ops
        from latentkv import _library
    package = Path(latentkv.__file__).parent
    assert Path(sys.prefix) in package.parents, f"latentkv is imported from {package}"
    assert (package / "py.typed").is_file()
    assert _library.backend() == backend, _library.backend()
    assert (_library.instruction_set() == "none") == (backend == "definition")
    expected = 0 if backend == "cpu" else 1
    assert len(caught) == expected, [str(warning.message) for warning in caught]

    contract = latentkv.NormContract(4, 1e-6, "cast_then_gain")
    x = torch.tensor([1.0, 1.0, 1.0, 2.0], dtype=torch.bfloat16)
    gain = torch.full((4,), 0.75, dtype=torch.bfloat16)
    y = latentkv.rms_norm(x, gain, contract).tolist()
    assert y == [0.5703125, 0.5703125, 0.5703125, 1.140625], y
    print(f"latentkv {latentkv.__version__}, backend {backend}, from {package}: right")


if __name__ == "__main__":
    main()
