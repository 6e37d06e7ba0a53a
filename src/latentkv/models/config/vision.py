"""The vision tower of Kimi K2.5 and K3, from vision_config. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from ..architecture import VisionTower
from .keys import Keys


@dataclass(frozen=True)
class _Form:
    """What a published tower's layers have: biases, and which norm and projector go with them."""

    bias: bool
    projector: str
    norm: str


# Published towers are of two kinds, and `VisionTower.bias` tells them apart.
_FORMS = {
    "kimi_k25": _Form(True, "patchmerger", "layernorm"),
    "kimi_k3": _Form(False, "patchmergerv2", "rmsnorm"),
}


def vision_tower(keys: Keys, model_type: str) -> tuple[VisionTower | None, str]:
    """The tower and its projector, or why it isn't known."""
    vision = keys.inside("vision_config")
    if vision is None:
        return None, "the configuration has no vision_config; the tower is not counted."
    form = _FORMS[model_type]
    switches = ("attn_bias", "linear_bias", "patch_embed_proj_bias")
    if (
        any(vision.flag(name, form.bias) != form.bias for name in switches)
        or vision.word("norm_type", form.norm) != form.norm
        or vision.word("mm_projector_type", form.projector) != form.projector
    ):
        return None, (
            f"a tower with other biases, norms or projector than {model_type}'s published "
            "one; it is not counted."
        )
    hidden = _size(vision, "hidden_size")
    projected = {
        one.size(name)
        for one, name in ((vision, "mm_hidden_size"), (keys, "projection_hidden_size"))
        if one.has(name)
    }
    if projected - {hidden}:
        return None, "the projector reads another width than the tower gives; not counted."
    merge = vision.sizes("merge_kernel_size", most=1 << 10)
    if merge is None or len(merge) != 2:
        vision.fail(f"{vision.place('merge_kernel_size')} must be rows and columns of patches")
    return VisionTower(
        layers=_size(vision, "num_hidden_layers", most=10_000),
        hidden=hidden,
        width=_size(vision, "intermediate_size"),
        attention=vision.size_or("qkv_hidden_size", hidden),
        patch=vision.size("patch_size", most=1 << 10),
        channels=vision.size_or("in_channels", 3),
        positions=(_position(vision, "height"), _position(vision, "width")),
        merged=merge[0] * merge[1],
        bias=form.bias,
    ), ""


def _size(vision: Keys, name: str, most: int = 1 << 24) -> int:
    """K2.5's and K3's own configurations write vt_ before it, transformers' does not."""
    return vision.size(name if vision.has(name) else f"vt_{name}", most=most)


def _position(vision: Keys, side: str) -> int:
    name = f"pos_emb_{side}"
    return vision.size(name if vision.has(name) else f"init_{name}", most=1 << 16)
