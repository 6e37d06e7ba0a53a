"""Values taken from a configuration: checked, and each noted with its origin. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from ...reading.files import short
from ..configured import Value
from .file import ConfigError, ConfigFile

T = TypeVar("T")
Path = tuple[str, ...]

MOST = 1 << 24  # of a width: what a contract takes
_HUGE, _TINY = 1e30, 1e-30  # of any other number: beyond them fp32 has no product

# Families call the same thing by several names; the first is the one that is shown.
NAMES: dict[str, Path] = {
    "n_routed_experts": ("n_routed_experts", "num_experts", "num_local_experts"),
    "n_shared_experts": ("n_shared_experts", "num_shared_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "num_experts_per_token"),
    "max_position_embeddings": ("max_position_embeddings", "model_max_length"),
    "num_nextn_predict_layers": ("num_nextn_predict_layers", "num_mtp_layers"),
    "dtype": ("dtype", "torch_dtype"),
}
# DeepSeek's inference/*.json
OWN_NAMES: dict[str, Path] = {
    "hidden_size": ("dim",),
    "intermediate_size": ("inter_dim",),
    "moe_intermediate_size": ("moe_inter_dim",),
    "num_hidden_layers": ("n_layers",),
    "first_k_dense_replace": ("n_dense_layers",),
    "num_attention_heads": ("n_heads",),
    "num_experts_per_tok": ("n_activated_experts",),
    "index_n_heads": ("index_n_heads",),
    "max_position_embeddings": ("max_seq_len",),
}


class Keys:
    """The keys of a configuration, looked up in its text_config first, where it has one.

    Every value that is taken is noted in ``values``. Each getter raises ConfigError for a value
    that is missing without a default, of another type, or out of range; null is missing.

    Arguments:
        source: the configuration.
        path: the keys that lead to the object in it that is meant.
        fallback: another such path, for keys that this object hasn't; the two may not contradict
            each other.
        names: what keys are called there.
    """

    def __init__(
        self,
        source: ConfigFile,
        path: Path = (),
        fallback: Path | None = None,
        names: Mapping[str, Path] = NAMES,
    ) -> None:
        self.source, self.values = source, dict[str, Value]()
        self._prefix = ""
        self._path, self._names = path, names
        self._paths = [path] if fallback is None else [path, fallback]

    def inside(self, name: str) -> Keys | None:
        """The object under this key, which notes its values here too; None where there is none."""
        found = self.find(name)
        if found is None:
            return None
        path, value = found
        if not isinstance(value, Mapping):
            self.refuse(path, value, "an object is expected")
        inner = Keys(self.source, path, None, self._names)
        inner.values, inner._prefix = self.values, f"{self._prefix}{name}."
        return inner

    def find(self, name: str) -> tuple[Path, Any] | None:
        """Where a key's value stands, and the value."""
        found = list(self._all(name))
        for path, value in found[1:]:
            first, other = found[0]
            if value != other:
                raise ConfigError(
                    f"{self.source.at(first)} is {short(other)}, and {self.source.at(path)} is "
                    f"{short(value)}: they must be equal, or one of them be removed"
                )
        return found[0] if found else None

    def _all(self, name: str) -> Iterator[tuple[Path, Any]]:
        for path in self._paths:
            held: Any = self.source.content
            for key in path:
                held = held.get(key) if isinstance(held, Mapping) else None
            for key in self._names.get(name, (name,)):
                if isinstance(held, Mapping) and held.get(key) is not None:
                    yield (*path, key), held[key]

    def has(self, name: str) -> bool:
        return next(self._all(name), None) is not None

    def names(self) -> tuple[str, ...]:
        """The keys of the object meant."""
        held: Any = self.source.content
        for key in self._path:
            held = held[key]
        return tuple(key for key in held if isinstance(key, str))

    def size(self, name: str, *, least: int = 1, most: int = MOST) -> int:
        """A whole number; must be there."""
        value = self.size_or(name, None, least=least, most=most)
        if value is None:
            self.missing(name)
        return value

    def size_or(self, name: str, default: T, *, least: int = 1, most: int = MOST) -> int | T:
        found = self.find(name)
        if found is None:
            return default
        path, value = found
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.refuse(path, value, f"a whole number from {least:,} to {most:,} is expected")
        return self._noted(name, path, value)

    def number(self, name: str) -> float:
        """A positive number; must be there."""
        value = self.number_or(name, None)
        if value is None:
            self.missing(name)
        return value

    def number_or(self, name: str, default: T, *, zero: bool = False) -> float | T:
        found = self.find(name)
        if found is None:
            return default
        path, value = found
        real = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not real or not (_TINY <= value <= _HUGE or (zero and value == 0)):
            wanted = "a number of at least 0" if zero else "a number above 0"
            self.refuse(path, value, f"{wanted}, and finite, is expected")
        return self._noted(name, path, float(value))

    def flag(self, name: str, default: bool = False) -> bool:
        found = self.find(name)
        if found is None:
            return default
        path, value = found
        if not isinstance(value, bool):
            self.refuse(path, value, "true or false is expected")
        return self._noted(name, path, value)

    def outermost_flag(self, name: str, default: bool) -> bool:
        """A flag of the whole model, whatever its language model's own object says.

        Of tie_word_embeddings transformers writes both, and they differ: the head belongs to the
        whole model.
        """
        for path in reversed(self._paths):
            alone = Keys(self.source, path, None, self._names)
            if alone.has(name):
                default = alone.flag(name)
                self.values.update(alone.values)
                break
        return default

    def word(self, name: str, default: str = "", allowed: Sequence[str] = ()) -> str:
        found = self.find(name)
        if found is None:
            return default
        path, value = found
        if not isinstance(value, str) or (allowed and value not in allowed):
            wanted = f"one of {', '.join(allowed)}" if allowed else "a string"
            self.refuse(path, value, f"{wanted} is expected")
        return self._noted(name, path, value)

    def words(self, name: str, allowed: Sequence[str] = ()) -> tuple[str, ...] | None:
        """A list of strings; None where there is none."""
        found = self.find(name)
        if found is None:
            return None
        path, value = found
        every = isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value)
        if not every or (allowed and set(value) - set(allowed)):
            of = f", each one of {', '.join(allowed)}," if allowed else ""
            self.refuse(path, value, f"a list of strings{of} is expected")
        return self._noted(name, path, tuple(value))

    def sizes(self, name: str, *, least: int = 1, most: int = MOST) -> tuple[int, ...] | None:
        """A list of whole numbers; None where there is none."""
        found = self.find(name)
        if found is None:
            return None
        path, value = found
        if not isinstance(value, (list, tuple)) or not all(
            isinstance(one, int) and not isinstance(one, bool) and least <= one <= most
            for one in value
        ):
            self.refuse(
                path, value, f"a list of whole numbers from {least:,} to {most:,} is expected"
            )
        return self._noted(name, path, tuple(value))

    def note(self, name: str, value: object, origin: str) -> None:
        """Note a value that is no key's, such as a class's default."""
        name = f"{self._prefix}{name}"
        self.values[name] = Value(name, value, origin)

    def place(self, name: str) -> str:
        """Where a key stands, for messages; where it would, if it isn't there."""
        found = next(self._all(name), None)
        first = self._names.get(name, (name,))[0]
        return self.source.at((*self._path, first) if found is None else found[0])

    def refuse(self, path: Path, value: object, wanted: str) -> NoReturn:
        raise ConfigError(f"{self.source.at(path)} is {short(value)}; {wanted}")

    def fail(self, message: str) -> NoReturn:
        """What no single key is guilty of."""
        label = self.source.label
        known = not label or message.startswith(label)  # a place names the file, too
        raise ConfigError(message if known else f"{label}: {message}")

    def missing(self, name: str) -> NoReturn:
        """Where no default is taken."""
        called = " or ".join(self._names.get(name, (name,)))
        where = f" in {'.'.join(self._path)}" if self._path else ""
        self.fail(
            f"{called} is missing{where}, and no default is taken for it: give the config.json "
            "that the checkpoint was published with"
        )

    def _noted(self, name: str, path: Path, value: T) -> T:
        self.note(name, value, self.source.at(path))
        return value
