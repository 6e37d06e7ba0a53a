"""What ``latentkv show --json`` says, as a test reads it."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from latentkv.cli import app


def shown(*arguments: str):
    result = CliRunner().invoke(app, ["show", "--json", *arguments])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
