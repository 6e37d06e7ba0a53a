"""A configuration's page on a terminal."""

from __future__ import annotations

from rich.console import RenderableType

from .config_page import ConfigPage, Norm
from .describe_formulas import scientific
from .models.configured import Note, Value
from .screen import PAGE_WIDTH
from .terminal import Pages
from .terminal_count import share

_NARROW = 50  # below, names beside their values leave too little of a line
_LONG_NAMES = 70  # the same, of a configuration's keys
_FEW = 6  # entries of a list

# What the contracts' section shows already.
_SHOWN = (
    "kv_lora_rank",
    "q_lora_rank",
    "order",
    "rms_norm_eps",
    "kv latent eps",
    "q latent eps",
    "block eps",
)


class ConfigPages(Pages):
    """Prints what a configuration says."""

    def config(self, page: ConfigPage) -> None:
        width = min(self.console.width, PAGE_WIDTH)
        kind = page.model_type or "DeepSeek's own configuration"
        parts: list[RenderableType] = [
            self.text(" › ".join(filter(None, (page.file, kind))), "dim"),
            "",
            self.text(f"{page.model} · Key–value latent RMSNorm", "bold"),
            "",
            self.norm_formula("γ_KV", page.norms[0].contract.eps),
            "",
            self.text("Contract", "bold"),
            self.fields(_contract(page), stacked=self._narrow),
            "",
            *self._listed("Easily taken wrongly", page.notes),
            *self._path(page),
            *self._parameters_of(page),
            *self._listed("Not known", page.unknown),
            self.text("Sizes, and where they stand", "bold"),
            self.fields(
                {
                    _short(one.name): f"{_value(one.value)}  ({_place(one)})"
                    for one in page.values
                    if one.name not in _SHOWN
                },
                stacked=width < _LONG_NAMES,
            ),
        ]
        self.write([(part, width) for part in parts])

    def _listed(self, title: str, said: tuple[Note, ...]) -> list[RenderableType]:
        if not said:
            return []
        fields: dict[str, str] = {}
        for topic, text in ((one.topic, one.text) for one in said):
            fields[topic] = f"{fields[topic]}\n{text}" if topic in fields else text
        return [self.text(title, "bold"), self.fields(fields, stacked=self._narrow), ""]

    @property
    def _narrow(self) -> bool:
        return self.console.width < _NARROW

    def _path(self, page: ConfigPage) -> list[RenderableType]:
        fields = {}
        if page.path is not None:
            fields = {"rotation": page.rotation}
            rope = page.path.rope
            if rope is not None:
                fields["frequencies"] = (
                    f"theta {rope.theta:,.0f}; factor {rope.factor:g} from pair {rope.low} to "
                    f"{rope.high}, applied to the {rope.interpolated}; up to "
                    f"{rope.max_positions:,} positions"
                )
            fields["quantisation"] = page.quantisation
        if page.softmax_scale is not None:
            fields["softmax scale"] = str(page.softmax_scale)
        for record in page.records:
            fields[f"{record.name} cache"] = (
                f"{record.bytes:,} bytes a token and layer; × {record.layers} = "
                f"{record.bytes_per_token:,} bytes a token"
            )
        if not fields:
            return []
        head = self.text("Key–value path", "bold")
        return [head, self.fields(fields, stacked=self._narrow), ""]

    def _parameters_of(self, page: ConfigPage) -> list[RenderableType]:
        if not page.totals:
            return []
        return [
            self.text("Parameters", "bold"),
            self.fields(
                {one.name: f"{one.parameters:,}: {one.counts}" for one in page.totals}
                | {one.title: f"{one.total:,}, {share(one.share)}" for one in page.parts},
                stacked=self._narrow,
            ),
            "",
        ]


def _contract(page: ConfigPage) -> dict[str, str]:
    latent = page.norms[0].contract
    return {one.name: _norm(one) for one in page.norms} | {
        "order": f"{latent.order}: {page.arithmetic} ({page.order_origin})",
        "follows": f"the arithmetic of {page.follows}",
    }


def _norm(norm: Norm) -> str:
    contract = norm.contract
    return (
        f"{contract.width:,} features ({norm.width_origin})\n"
        f"ε = {scientific(contract.eps)} ({norm.eps_origin})"
    )


def _short(name: str) -> str:
    return name.removeprefix("quantization_config.").removeprefix("config_groups.")


def _place(value: Value) -> str:
    """The origin, without a key that the name tells already."""
    place, _, key = value.origin.partition(": ")
    last = key.rpartition(".")[2]
    return place if last and last == value.name.rpartition(".")[2] else value.origin


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        few = ", ".join(map(str, value[:_FEW]))
        return few if len(value) <= _FEW else f"{few} and {len(value) - _FEW} more"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
