"""JSON, strictly: one object in UTF-8, no name twice, finite numbers. No torch.

Python's reader takes the last of two equal names, NaN, Infinity and half a surrogate pair. In a
file that says what a checkpoint holds, each is a fault or an attack, and is refused.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from .errors import CheckpointError
from .files import instead, short

DIGITS = 40  # of an integer: no size or count comes near
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


class _RefusedError(ValueError):
    """Why the text is refused, as the message will say it."""


def read_object(raw: bytes, file: str, part: str = "") -> dict[str, Any]:
    """The object that a JSON text is.

    Arguments:
        raw: the text, in UTF-8; a byte order mark is skipped.
        file: where it was read, for messages.
        part: what of the file it is, where it is not the whole: "header".

    Raises:
        CheckpointError: it is something else; says what.
    """
    what = f"{file}'s {part}" if part else file
    if not raw.strip():
        raise CheckpointError(f"{what} is empty; a JSON object is expected: download it again")
    if found := instead(raw[:64]):
        raise CheckpointError(f"{what} is {found}")
    try:
        text = raw.decode("utf-8-sig")
        del raw  # an index has 60 MB and more
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_constant,
        )
        if _HALF_PAIR.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        message = f"is not UTF-8: byte {error.object[error.start]:#04x} at {error.start:,}"
    except UnicodeEncodeError:
        message = "holds half of a surrogate pair, which stands for no character"
    except json.JSONDecodeError as error:
        fault = error.msg.removesuffix(" at")  # "... starting at"
        message = f"is not JSON: {fault} at line {error.lineno:,}, column {error.colno:,}"
    except _RefusedError as error:
        message = str(error)
    except RecursionError:
        message = "nests objects or lists too deep for any checkpoint's file"
    else:
        if isinstance(value, dict):
            return value
        message = f"is {_KINDS[type(value)]}; a JSON object, {{...}}, is expected"
    raise CheckpointError(f"{what} {message}. Download it again, or mend what wrote it")


_KINDS: dict[type, str] = {
    list: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _RefusedError(f"has the name {short(name)} twice in one object")
            seen.add(name)
    return result


def _integer(digits: str) -> int | float:
    if len(digits) > DIGITS:
        raise _RefusedError(f"holds an integer of {len(digits):,} digits; {DIGITS} are allowed")
    # -0 is a floating-point number, as other readers have it, and no size.
    return -0.0 if digits == "-0" else int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _RefusedError(f"holds the number {short(digits)}, which fp64 can't")
    return value


def _constant(word: str) -> float:
    raise _RefusedError(f"holds {word}, which is not JSON")
