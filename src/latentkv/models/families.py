"""Model types whose latent norm has a contract here, and those known to have none. No torch.

The eps of a latent norm is the default of its class: these models build it with the width alone,
whatever rms_norm_eps their configuration gives. Lines are those of the file named.
"""

from __future__ import annotations

from dataclasses import dataclass

from .configured import Note, cited
from .deepseek_v32 import DEEPSEEK_V32
from .kimi_k2 import KIMI_K2
from .kimi_k3 import KIMI_K3
from .spec import Model

TRANSFORMERS = "transformers 5.24.0"


@dataclass(frozen=True)
class Class:
    """An RMSNorm class of transformers: where its eps stands, and where the norms are built.

    ``package`` is the folder and file; the lines are those of the default, of the latent norm's
    construction, and of the query latent's.
    """

    package: str
    name: str
    eps: float
    default: int
    kv: int
    query: int

    @property
    def file(self) -> str:
        return f"models/{self.package}/modeling_{self.package}.py"


@dataclass(frozen=True)
class Family:
    """What a model type says of its latent norm.

    Arguments:
        model_type: as configurations have it; "" for DeepSeek's own, which have none.
        display: for titles, where no folder has a name.
        follows: whose arithmetic the norms have, and whose rotation the key.
        norm: the class in transformers whose default is the eps; None where it is that of
            ``follows``, whose own code was read.
        block_eps: whether the blocks' norms get the configuration's eps.
        nested: whether the language model stands under text_config.
        code: the file of the norm's class, where it is neither of these.
        no_kv: why the key-value path has no contract; "" where it has.
        notes, unknown: what holds for every configuration of this type.
        unknown_eps: what does for one whose eps is not the class's default.
    """

    model_type: str
    display: str
    follows: Model
    norm: Class | None = None
    block_eps: bool = True
    nested: bool = False
    code: str = ""
    no_kv: str = ""
    notes: tuple[Note, ...] = ()
    unknown: tuple[Note, ...] = ()
    unknown_eps: Note | None = None

    @property
    def eps(self) -> float:
        return self.follows.norms.kv_latent.eps if self.norm is None else self.norm.eps

    def eps_origin(self, query: bool = False) -> str:
        """Which class's default it is, and where the norm is built without another."""
        if self.norm is not None:
            return (
                f"{self.norm.name}'s default, {TRANSFORMERS} {self.norm.file} {self.norm.default}; "
                f"built with the width alone, {self.norm.query if query else self.norm.kv}"
            )
        norm = self.follows.kv_latent_norm
        both = ", as for the key-value latent" if query else ""
        return f"{norm.class_name}'s default, {self.code or cited(norm.eps)}{both}"

    def order_origin(self) -> str:
        """The code that multiplies by the gain before it rounds, or after."""
        if self.norm is not None:
            return f"{self.norm.name}.forward, {TRANSFORMERS} {self.norm.file}"
        return self.code or cited(self.follows.kv_latent_norm.arithmetic)


_V3 = Class("deepseek_v3", "DeepseekV3RMSNorm", 1e-6, 39, 392, 380)
_V3_ROUNDS_ONCE = Note(
    "rounding",
    "DeepSeek's own inference/model.py of V3 (GitHub, 9b4e978) rounds once, after the gain; the "
    "modeling file that checkpoints come with, and transformers, round before it too.",
)
_K2_LATER = Note(
    "eps",
    "the modeling files of K2-Thinking and K2.5, whose configurations say 1e-5, were not read at "
    "their revisions; the class has the name of K2-Instruct's, whose default is applied here.",
)

FAMILIES = {
    family.model_type: family
    for family in (
        Family(
            "deepseek_v2",
            "DeepSeek-V2",
            KIMI_K2,
            Class("deepseek_v2", "DeepseekV2RMSNorm", 1e-6, 158, 333, 321),
            notes=(
                Note(
                    "rotation",
                    "Kimi K2's, as DeepSeek's modeling files have it; transformers turns "
                    "deepseek_v2's key in fp32, rounds once and leaves the pairs side by side "
                    f"({TRANSFORMERS} models/deepseek_v2/modeling_deepseek_v2.py).",
                ),
            ),
        ),
        Family(
            "deepseek_v3",
            "DeepSeek-V3",
            KIMI_K2,
            _V3,
            notes=(_V3_ROUNDS_ONCE,),
            unknown_eps=_K2_LATER,
        ),
        Family(
            "deepseek_v32",
            "DeepSeek-V3.2",
            DEEPSEEK_V32,
            block_eps=False,
            notes=(
                Note(
                    "rounding",
                    f"{TRANSFORMERS} runs deepseek_v32 with Kimi K2's two roundings, without the "
                    "e4m3 round trip of the latent and with the key in the half layout; the "
                    "contract is that of DeepSeek's own model.py.",
                ),
            ),
        ),
        Family("kimi_k2", "Kimi K2", KIMI_K2, unknown_eps=_K2_LATER),
        Family("kimi_k3", "Kimi K3", KIMI_K3, nested=True),
        Family(
            "kimi_linear",
            "Kimi Linear",
            KIMI_K3,
            Class("kimi_linear", "KimiLinearRMSNorm", 1e-6, 55, 235, 223),
        ),
        Family("kimi_k25", "Kimi K2.5", KIMI_K2, _V3, nested=True, unknown_eps=_K2_LATER),
        Family(
            "glm_moe_dsa",
            "GLM-5",
            KIMI_K2,
            Class("glm_moe_dsa", "GlmMoeDsaRMSNorm", 1e-6, 49, 333, 325),
            unknown=(
                Note(
                    "eps",
                    "with which eps GLM-5 was trained is not known; transformers, which is its "
                    "published code, applies the class's default.",
                ),
            ),
        ),
        Family(
            "minicpm3",
            "MiniCPM3",
            KIMI_K2,
            Class("minicpm3", "MiniCPM3RMSNorm", 1e-6, 61, 275, 263),
            no_kv="minicpm3 turns features i and i + width / 2 of the key with each other, where "
            "a RopeContract turns 2i and 2i + 1",
        ),
    )
}

OWN_V32 = Family(
    "",
    "DeepSeek-V3.2",
    DEEPSEEK_V32,
    block_eps=False,
    notes=(
        Note(
            "names",
            "the tensors are those of the published checkpoint, before DeepSeek's convert.py "
            "renames them; its MTP layer, which this configuration doesn't count, is not among "
            "them.",
        ),
    ),
)
OWN_V3 = Family(
    "",
    "DeepSeek-V3",
    DEEPSEEK_V32,
    block_eps=False,
    code="deepseek-ai/DeepSeek-V3 inference/model.py (GitHub, 9b4e978)",
    no_kv="the rotation of DeepSeek-V3's inference/model.py was not read",
    notes=(
        Note(
            "rounding",
            "DeepSeek-V3's inference/model.py (GitHub, 9b4e978) calls torch's rms_norm, which "
            "rounds once, after the gain; the modeling file beside the checkpoint rounds twice "
            "(give the checkpoint's config.json for that).",
        ),
        *OWN_V32.notes,
    ),
)

# Whose norms a model type has. Eps and order come from there, never from a config: those of Kimi
# Linear and Kimi K3 say another eps than the latent norms apply. Kimi K2's code is DeepSeek-V3's.
FOLLOWS = {name: family.follows.name for name, family in FAMILIES.items()}

_CONFIG_EPS = f"in {TRANSFORMERS} its latent norm applies the configuration's rms_norm_eps"
_CLASS_EPS = (
    f"in {TRANSFORMERS} its latent norm applies its class's default, 1e-6, rounding before the "
    "gain; its sizes and its rotation are not described here"
)

# Types that have a latent, and why no contract here is theirs.
REFUSED = {
    "longcat_flash": "it multiplies the normalised latents by sqrt(hidden / rank) after the gain, "
    "a rounding of its own (3.4641 for the key-value latent, 2 for the query's), and no contract "
    "here has a multiplication after the norm",
    "deepseek_v4": "it has no up-projection of the latent and one key-value head: the norm covers "
    "all 512 features, then the last 64 are rotated, and the first 448 go through e4m3 in groups "
    "of 64; no contract here has that path",
    "mistral4": _CLASS_EPS,
    "mistral_large4": _CONFIG_EPS,
    "dots3_note": _CONFIG_EPS,
    "glm5_next": _CONFIG_EPS,
    **dict.fromkeys(
        ("axk1", "axk2", "bailing_hybrid", "glm4_moe_lite", "hy_v4", "youtu"), _CLASS_EPS
    ),
}
MISTRAL = (
    "Mistral's own format (params.json, as of Mistral Large 3) gives norm_eps and no model_type; "
    "which eps its latent norm applies is not known, so no contract here is its"
)
