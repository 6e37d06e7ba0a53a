"""What ``latentkv count`` counts: a model by name, a checkpoint on disk or on the hub. No torch.

A name gives what is derived from the model's sizes. A path or a repository is read, headers only,
and held against what its own configuration says, or one of the models.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from . import models
from .accounting import Report, Side, Tree, reconcile, tensors, totals, tree
from .checkpoint import Checkpoint, CheckpointError, Progress, read
from .models.configured import ARITHMETIC, Configured, Note, Value, cited
from .verdict import BY_NAME_AND_SIZE, matched, unchecked, underived

_CONFIGURATION = re.compile(r"config(_.*)?\.json")  # DeepSeek's own are config_671B.json and so on
_FACTS = (
    "hidden_size",
    "layers",
    "dense_layers",
    "mla_layers",
    "mtp_layers",
    "heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)


@dataclass(frozen=True)
class Count:
    """A count.

    Arguments:
        model: what is counted, for a title.
        tree: the derived components; None where nothing could be derived.
        found: totals of the checkpoint that was read, or None.
        report: the checkpoint held against the derived tensors; None where one of them is missing.
        sizes: what the tree is derived from, each with the place where it stands.
        verdict: one sentence.
        notes: what else should be known.
    """

    model: str
    tree: Tree | None
    found: Side | None
    report: Report | None
    sizes: tuple[Value, ...]
    verdict: str
    notes: tuple[str, ...]


def count(
    what: str,
    *,
    model: str | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
) -> Count:
    """Count a model, a checkpoint on disk, or one on the hub.

    Arguments:
        what: a model's name, a path, or a repository (owner/name). Of a config.json alone, what
            follows from it.
        model: the name of the model to compare a checkpoint with, in place of its configuration.
        revision: of a repository.
        progress: see `checkpoint.read`.

    Raises:
        CheckpointError, models.ConfigError, models.UnknownModelError: each says what to do.
        ValueError: a config.json alone that doesn't give all sizes; options that don't go with a
            model's name.
    """
    against = None if model is None else models.get(model)
    if "/" not in what and (_is_name(what) or not os.path.exists(what)):
        named = _named(what)
        if against is not None or revision is not None:
            raise ValueError(
                f"{what} is a model's name, which reads no checkpoint: --model and --revision go "
                f"with a path or a repository, such as {named.repository}"
            )
        return _derived(named)
    if _CONFIGURATION.fullmatch(os.path.basename(what)) and against is None and revision is None:
        return _derived(models.from_config(what))
    try:
        there = read(what, revision=revision, progress=progress)
    except CheckpointError as error:
        raise CheckpointError(_explained(what, str(error))) from error
    if against is not None:
        return _compared(there, against, ())
    if there.config is None:
        recognised = _recognised(there)
        return _compared(
            there, recognised, (f"no config.json: its names are {recognised.display}'s",)
        )
    if there.revision is None:  # once more from the disk, for the lines
        configured = models.from_config(there.config_file)
    else:
        configured = models.from_config(there.config, file=there.config_file)
    if configured.architecture is None:
        why = "; ".join(_counting(configured.unknown))
        return Count(
            model=configured.display,
            tree=None,
            found=totals(there),
            report=None,
            sizes=configured.values,
            verdict=underived(why),
            notes=_counting(configured.notes),
        )
    return _compared(there, configured, _said(configured))


def _said(configured: Configured) -> tuple[str, ...]:
    return _counting((*configured.notes, *configured.unknown))


def _counting(notes: tuple[Note, ...]) -> tuple[str, ...]:
    return tuple(str(note) for note in notes if note.topic not in ARITHMETIC)


def _explained(what: str, error: str) -> str:
    """What was read at all, where a path may have been meant; and what can be had without it."""
    if os.path.exists(what) or "://" in what or what.startswith(("/", ".", "~")):
        return error
    told = f"there is no path {what}, so that the hub was asked. {error}"
    try:
        return f"{told}. `latentkv count {models.get(what).name}` needs no checkpoint"
    except models.UnknownModelError:
        return told


def _is_name(what: str) -> bool:
    """A model's name means the model, as for the other commands; ./kimi-k2 is a folder."""
    return what.strip().lower() in models.names()


def _named(name: str) -> models.Model:
    try:
        return models.get(name)
    except models.UnknownModelError as error:
        raise models.UnknownModelError(
            f"{error}. There is no such path, either; a repository is owner/name"
        ) from None


def _derived(model: models.Model | Configured) -> Count:
    """What follows from the sizes alone."""
    notes: tuple[str, ...]
    if isinstance(model, Configured):
        verdict, notes = unchecked(), _said(model)
    elif model.published is None:
        verdict = unchecked()
        notes = (f"latentkv count {model.repository} counts them, without reading the weights",)
    else:
        published = model.published
        verdict = matched(how="" if published.shapes else BY_NAME_AND_SIZE)
        notes = (
            f"{published.tensors:,} tensors and {published.bytes:,} bytes in all "
            f"({published.source})",
        )
    return Count(
        model=model.display,
        tree=tree(model),
        found=None,
        report=None,
        sizes=_sizes(model),
        verdict=verdict,
        notes=notes,
    )


def _compared(there: Checkpoint, model: models.Model | Configured, notes: tuple[str, ...]) -> Count:
    report = reconcile(model, there)
    return Count(
        model=model.display,
        tree=tree(model),
        found=report.found,
        report=report,
        sizes=_sizes(model),
        verdict=report.verdict,
        notes=(*notes, *report.warnings),
    )


def _sizes(model: models.Model | Configured) -> tuple[Value, ...]:
    if isinstance(model, Configured):
        return model.values
    facts = [(name, getattr(model, name)) for name in _FACTS]
    return tuple(
        Value(name, fact.value, cited(fact.place)) for name, fact in (*facts, *model.sizes)
    )


def _recognised(there: Checkpoint) -> models.Model:
    """The model whose tensors have these names."""
    for name in models.names():
        model = models.get(name)
        derived = [tensor.name for tensor in tensors(model)]
        if len(derived) == len(there.files) and all(one in there.files for one in derived):
            return model
    raise CheckpointError(
        f"{there.where}: there is no config.json beside it, and its {len(there.files):,} names are "
        f"not those of a model known here: put the model's config.json beside it, or say which it "
        f"is with --model ({', '.join(models.names())})"
    )
