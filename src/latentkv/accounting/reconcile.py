"""What a model's sizes say its checkpoint holds, against what is there. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..checkpoint import Checkpoint, Progress, Stored, read
from ..checkpoint.naming import of_inference, to_inference
from ..models.architecture import Architecture
from ..verdict import BY_NAME, BY_NAME_AND_SIZE, differs, matched
from .packed import Holdings, is_buffer
from .sizes import Sized, sizes, title
from .storage import Tensor
from .tensors import tensors

# Dtypes between which one that was only expected may turn out otherwise.
_ALIKE = ({"float32", "bfloat16", "float16"}, {"int32", "int64"})


@dataclass(frozen=True)
class Side:
    """Totals of one side; None for what an index file alone doesn't say.

    ``declared``: parameters and bytes are what an index alone declares, not counted.
    """

    tensors: int
    parameters: int | None
    bytes: int | None
    declared: bool = False


@dataclass(frozen=True)
class Difference:
    """A tensor that both sides have, each in its own way."""

    name: str
    derived: str
    found: str


@dataclass(frozen=True)
class Report:
    """A model held against a checkpoint.

    Arguments:
        model: what the derived side is called.
        where: the folder, file or repository, as given.
        revision: the commit that was read, of a repository; else None.
        derived: from the model's sizes.
        found: in the checkpoint. Packed codes count as what they stand for, scales as nothing.
        missing: derived, but not there.
        extra: there, but not derived.
        shapes, dtypes: of another shape or dtype than derived.
        warnings: what doesn't decide, but should be known, such as a total in the index that its
            tensors don't add up to.
        verdict: one sentence.
        matches: whether nothing is missing, extra or different.
    """

    model: str
    where: str
    revision: str | None
    derived: Side
    found: Side
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    shapes: tuple[Difference, ...]
    dtypes: tuple[Difference, ...]
    warnings: tuple[str, ...]
    verdict: str
    matches: bool


def reconcile(
    model: Sized,
    where: str | os.PathLike[str] | Checkpoint,
    *,
    revision: str | None = None,
    token: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Hold what a model's sizes say against a checkpoint, of which only headers are read.

    Arguments:
        model: one of `models`, or of `models.from_config`, or plain sizes.
        where: a folder, an index file alone (names and total size, no shapes), a .safetensors
            file, a repository of the Hugging Face hub, or what `checkpoint.read` gave.
        revision: a branch, tag or commit, of a repository.
        token: for a repository that wants one; else the one that is logged in.
        progress: called with files done, files in all, and the file at work.

    Raises:
        CheckpointError: something can't be read, is broken or contradicts itself. There is never a
            count of a part.
        ValueError: a configuration whose sizes are not all known (`Configured.unknown`).
    """
    architecture = sizes(model)
    if isinstance(where, Checkpoint):
        there = where
    else:
        there = read(where, revision=revision, token=token, progress=progress)
    return _Comparison(architecture, there).report(title(model))


def totals(there: Checkpoint) -> Side:
    """Totals of a checkpoint by itself, with nothing derived to hold it against."""
    if there.tensors is None:
        return _declared(there)
    holds = Holdings(there.tensors, there.config)
    return _counted(there.tensors, sum(map(holds.parameters, there.tensors)))


def _declared(there: Checkpoint) -> Side:
    """Of an index file alone."""
    return Side(len(there.files), there.declared_parameters, there.declared_bytes, declared=True)


def _counted(stored: Mapping[str, Stored], parameters: int) -> Side:
    return Side(len(stored), parameters, sum(one.bytes for one in stored.values()))


@dataclass
class _Comparison:
    architecture: Architecture
    there: Checkpoint
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    shapes: list[Difference] = field(default_factory=list)
    dtypes: list[Difference] = field(default_factory=list)
    expected: list[Difference] = field(default_factory=list)
    buffers: list[str] = field(default_factory=list)  # not learned, and on one side only
    buffer_bytes: int = 0  # of those that are derived
    other_buffers: int = 0  # of another shape or dtype
    warnings: list[str] = field(default_factory=list)
    derived: int = 0
    derived_parameters: int = 0
    derived_bytes: int = 0
    parameters: int = 0

    def report(self, name: str) -> Report:
        self._compare()
        there = self.there
        stored = there.tensors
        # of what is derived the unpacked shape is known; words may have room for more
        found = _declared(there) if stored is None else _counted(stored, self.parameters)
        self._warn(found)
        wrong = self.missing or self.extra or self.shapes or self.dtypes
        matches = not wrong and not (there.tensors is None and self._another_size())
        return Report(
            model=name,
            where=there.where,
            revision=there.revision,
            derived=Side(self.derived, self.derived_parameters, self.derived_bytes),
            found=found,
            missing=tuple(self.missing),
            extra=tuple(self.extra),
            shapes=tuple(self.shapes),
            dtypes=tuple(self.dtypes),
            warnings=tuple(self.warnings),
            verdict=self._verdict(matches),
            matches=matches,
        )

    def _compare(self) -> None:
        files, stored = self.there.files, self.there.tensors
        holds = None if stored is None else Holdings(stored, self.there.config)
        for tensor in self._tensors():
            self.derived += 1
            self.derived_parameters += tensor.parameters
            self.derived_bytes += tensor.bytes
            if tensor.name in files:
                if stored is not None and holds is not None:
                    self._one(tensor, stored[tensor.name], holds)
            elif is_buffer(tensor.name):
                self.buffers.append(tensor.name)
                self.buffer_bytes += tensor.bytes
            else:
                self.missing.append(tensor.name)
        # 497,220 names a second time only where there are any to find
        if len(files) > self.derived - len(self.missing) - len(self.buffers):
            known = {tensor.name for tensor in self._tensors()}
            for name in sorted(name for name in files if name not in known):
                buffer = is_buffer(name, stored[name] if stored is not None else None)
                (self.buffers if buffer else self.extra).append(name)
            if holds is not None:
                self.parameters += sum(map(holds.parameters, self.extra))
        if holds is not None:
            self.warnings += holds.warnings

    def _tensors(self) -> Iterator[Tensor]:
        """What is derived, under the names that the checkpoint uses."""
        if not of_inference(self.there.files):
            return tensors(self.architecture)
        language = replace(self.architecture, mtp_layers=0)
        return (one._replace(name=to_inference(one.name)) for one in tensors(language))

    def _one(self, derived: Tensor, found: Stored, holds: Holdings) -> None:
        if is_buffer(derived.name, found):
            if (derived.shape, derived.dtype) != (found.shape, found.dtype):
                self.other_buffers += 1
            return
        if derived.shape == found.shape:
            self.parameters += derived.parameters
        else:
            self.shapes.append(Difference(derived.name, str(derived.shape), str(found.shape)))
            self.parameters += holds.parameters(derived.name)
        if derived.dtype != found.dtype:
            likely = derived.expected and any({derived.dtype, found.dtype} <= one for one in _ALIKE)
            kept = self.expected if likely else self.dtypes
            kept.append(Difference(derived.name, derived.dtype, found.dtype))

    def _another_size(self) -> bool:
        declared = self.there.declared_bytes
        if declared is None:
            return False
        least = self.derived_bytes - self.buffer_bytes
        if any(name in self.there.files for name in self.buffers):
            return declared < least  # an index doesn't give the size of what is there besides
        return declared != least

    def _warn(self, found: Side) -> None:
        there = self.there
        if of_inference(there.files):
            self.warnings.append(
                "the names are those of DeepSeek's inference code, which has no MTP layer"
            )
        if self.other_buffers:
            self.warnings.append(
                f"{self.other_buffers:,} buffers that are not learned have another shape or dtype"
            )
        if self.buffers:
            unsized = "; an index doesn't give their size, so the total is not compared"
            there_too = any(name in there.files for name in self.buffers)
            self.warnings.append(
                f"{len(self.buffers):,} buffers that are not learned, such as {self.buffers[0]}, "
                + ("are stored as well" if there_too else "are not stored")
                + (unsized if there_too and there.tensors is None else "")
            )
        if self.expected:
            one = self.expected[0]
            self.warnings.append(
                f"{len(self.expected):,} tensors have another dtype than the one expected, which "
                f"nobody had read: {one.found} for {one.derived}, such as {one.name}"
            )
        if there.tensors is None:
            if self._another_size():
                self.warnings.append(
                    f"the index declares {there.declared_bytes:,} bytes in all, the derived "
                    f"tensors have {self.derived_bytes:,}; an index alone doesn't say which "
                    "tensors differ: pass the folder or the repository to compare shapes"
                )
            if there.declared_parameters not in (None, self.derived_parameters):
                self.warnings.append(
                    f"the index declares {there.declared_parameters:,} parameters, the derived "
                    f"tensors hold {self.derived_parameters:,}; some writers count packed codes as "
                    "they are stored"
                )
            return
        if there.declared_bytes not in (None, found.bytes):
            self.warnings.append(
                f"the index declares {there.declared_bytes:,} bytes in all, its tensors have "
                f"{found.bytes:,}: the latter is shown"
            )
        if there.declared_parameters not in (None, found.parameters):
            self.warnings.append(
                f"the index declares {there.declared_parameters:,} parameters, its tensors hold "
                f"{found.parameters:,}: the latter is shown"
            )

    def _verdict(self, matches: bool) -> str:
        if not matches:
            return differs(
                {
                    "missing": len(self.missing),
                    "extra": len(self.extra),
                    "of another shape": len(self.shapes),
                    "of another dtype": len(self.dtypes),
                },
                self.there.tensors is not None and self.parameters == self.derived_parameters,
            )
        if self.there.tensors is not None:
            return matched()
        sized = self.there.declared_bytes is not None and not self.buffers
        return matched(how=BY_NAME_AND_SIZE if sized else BY_NAME)
