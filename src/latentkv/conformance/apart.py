"""A check in a process of its own, while this one goes on with the next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import TracebackType

from .identify import Report
from .implementation import ImplementationError

# As the script `latentkv` starts: without the working directory, whose files may bear the names of
# modules that torch imports.
# It leaves without taking torch apart, 0.7 s.
_MAIN = """
import os, sys
del sys.path[0]
from latentkv.cli import main
try:
    main()
except SystemExit as exit:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit.code or 0)
"""


class Apart:
    """``latentkv check --json`` for some ``--impl``, begun at once and read later.

    Compiling takes as long as everything else together, most of it in the C++ compiler.
    """

    def __init__(self, specs: Sequence[str], models: Sequence[str]) -> None:
        model = models if len(models) == 1 else ()  # one or all, as on the command line
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _MAIN, "check", *model, "--json"]
            + [f"--impl={spec}" for spec in specs],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            # Two processes with as many threads as cores each: 11 s instead of 8.
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def __enter__(self) -> Apart:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()  # without effect on one that has ended
        self._process.communicate()

    def reports(self) -> Iterator[tuple[str, Report]]:
        """Wait for the reports, by model. Raises ImplementationError with what it said instead."""
        output, errors = self._process.communicate()
        try:
            results = json.loads(output)
        except ValueError:
            said = errors.strip().splitlines() or [f"exit code {self._process.returncode}"]
            raise ImplementationError(said[-1].removeprefix("latentkv: ")) from None
        for fields in results:
            known = {name: fields[name] for name in Report.__dataclass_fields__}
            yield fields["model"], Report(**known)
