"""What a fact about a model looks like: a value, and the place in a file where it stands.

Everything here is frozen data without behaviour beyond naming itself. A page, a counter and a
checker read the same objects. Lines are those of the pinned revision, both ends included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, get_args

from ..contracts import KVContract, NormContract
from .architecture import Architecture, Published
from .yarn import Yarn, softmax_scale

T = TypeVar("T")

Counted = Literal["MoE blocks", "MLA layers"]
StepName = Literal["down-projection", "norm", "rotation", "quantisation", "up-projection", "cache"]
ComponentName = Literal[  # in the order of the data
    "down-projection",
    "split",
    "norm",
    "rotation",
    "quantisation",
    "up-projection",
    "cache",
    "query-norm",
]
COMPONENTS: tuple[ComponentName, ...] = get_args(ComponentName)


@dataclass(frozen=True)
class Lines:
    """Lines ``first`` to ``last`` of a file, or the one line ``first``."""

    first: int
    last: int = 0  # 0: the same as first

    def __post_init__(self) -> None:
        if self.last == 0:
            object.__setattr__(self, "last", self.first)
        if not 1 <= self.first <= self.last:
            raise ValueError(f"lines must run upwards from 1, got {self.first} to {self.last}")

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


@dataclass(frozen=True)
class File:
    """A file at one revision of one repository.

    ``copy_of`` names the repository that published the file where ``repository`` only holds a
    copy of it: the copy is what was read, so the copy is what is cited.
    """

    repository: str
    path: str
    revision: str
    copy_of: str = ""

    @property
    def name(self) -> str:
        """The last part of the path, which is how a page refers to the file."""
        return self.path.rpartition("/")[2]

    @property
    def address(self) -> str:
        """Repository, path and revision in one word."""
        return f"{self.repository}/{self.path}@{self.revision}"

    def at(self, *lines: int | tuple[int, int]) -> Place:
        """Single lines and (first, last) ranges of this file."""
        return Place(self, tuple(Lines(*((n,) if isinstance(n, int) else n)) for n in lines))


@dataclass(frozen=True)
class Place:
    """Lines of a file: where a fact can be read."""

    file: File
    lines: tuple[Lines, ...]

    def __post_init__(self) -> None:
        if not self.lines:
            raise ValueError(f"a place in {self.file.path} needs at least one line")

    @property
    def label(self) -> str:
        """The lines as a page writes them: ``227, 383`` or ``94–111``."""
        return ", ".join(map(str, self.lines))


@dataclass(frozen=True)
class Fact(Generic[T]):
    """A value, where it stands, and what the place leaves unsaid."""

    value: T
    place: Place
    note: str = ""


@dataclass(frozen=True)
class Source:
    """A passage that supports a page: what it shows, and how directly."""

    id: str
    grade: str
    claim: str
    place: Place

    @property
    def repository(self) -> str:
        return self.place.file.repository

    @property
    def path(self) -> str:
        return self.place.file.path

    @property
    def revision(self) -> str:
        return self.place.file.revision

    @property
    def lines(self) -> str:
        return self.place.label


@dataclass(frozen=True)
class LatentNorm:
    """The RMSNorm of a latent, the key-value one or the query's, as one model's code has it.

    Arguments:
        title: what the model's page calls it.
        container: what the model calls its layers, for the breadcrumb.
        counted: the instances that the page counts; the model may hold more (`Model.mla_layers`).
        path: the rest of the breadcrumb, below the counted blocks.
        call: the expression that runs it, with its line.
        module, class_name: the attribute that holds it, and its class.
        input, output, gain: symbols, in LaTeX.
        positions: how many positions the page's input has; None for any number.
        arithmetic: the lines that compute it.
        eps: the lines that give eps its value: the class's default, and the construction that
            passes nothing else.
        eps_config: the eps of the model's configuration file, applied or not.
        gain_dtype: the dtype in which the model's own code holds the gain.
        tensors_match: whether the parameter total was found to match the checkpoint's tensors.
        code: the passages that a reader needs.
        sources: what the page rests on.
    """

    title: str
    container: str
    counted: Counted
    path: tuple[str, ...]
    call: Fact[str]
    module: str
    class_name: str
    input: str
    output: str
    gain: str
    positions: int | None
    arithmetic: Place
    eps: Place
    eps_config: Fact[float]
    gain_dtype: Fact[str]
    tensors_match: bool
    code: Place
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Rotation:
    """The shared key's rotation as a model's configuration has it."""

    theta: Fact[float]
    factor: Fact[float]
    original: Fact[int]
    beta_fast: Fact[float]
    beta_slow: Fact[float]
    mscale: Fact[float]
    mscale_all_dim: Fact[float]

    @property
    def yarn(self) -> Yarn:
        return Yarn(
            theta=self.theta.value,
            factor=self.factor.value,
            original=self.original.value,
            beta_fast=self.beta_fast.value,
            beta_slow=self.beta_slow.value,
            mscale=self.mscale.value,
            mscale_all_dim=self.mscale_all_dim.value,
        )


@dataclass(frozen=True)
class Step:
    """One step from the hidden state to the cache: what the model's code has for it, and where."""

    name: StepName
    expression: str
    place: Place
    note: str = ""


@dataclass(frozen=True)
class Compression:
    """The key-value path of one model's code around the latent norm.

    Arguments:
        prefix: what the checkpoint puts before the three names of a layer, N its number.
        down, norm, up: the attributes that hold the down-projection, the latent norm and the
            up-projection, as the checkpoint names them.
        steps: in the order in which they run.
        scale: the lines that give the softmax its scale.
    """

    prefix: str
    down: str
    norm: str
    up: str
    steps: tuple[Step, ...]
    scale: Place


@dataclass(frozen=True)
class ComponentFacts:
    """What a component's page says beside its step, its contract and the model's sizes.

    Arguments:
        component: its name.
        code: the passages that a reader needs.
        sources: what the page rests on.
        call: the expression that runs it, with its line; None for its step's.
        arithmetic: the lines that compute it; None for its step's.
        told: what is computed, where neither a contract says it nor ``nn.Linear`` does it.
        roundings: of what is told.
    """

    component: ComponentName
    code: Place
    sources: tuple[Source, ...]
    call: Fact[str] | None = None
    arithmetic: Place | None = None
    told: str = ""
    roundings: int = 0

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError(f"the page of {self.component} needs at least one source")


@dataclass(frozen=True)
class PathFacts:
    """The pages of a model's key-value path other than its latent norm's."""

    query_norm: LatentNorm
    components: tuple[ComponentFacts, ...]

    def of(self, component: str) -> ComponentFacts:
        """Those of one component. Raises LookupError where there are none."""
        named: dict[str, ComponentFacts] = {facts.component: facts for facts in self.components}
        if component not in named:
            raise LookupError(f"no page of {component!r}; there are those of {', '.join(named)}")
        return named[component]


@dataclass(frozen=True)
class Norms:
    """The contracts of a model's RMSNorms."""

    kv_latent: NormContract
    q_latent: NormContract
    block: NormContract


@dataclass(frozen=True)
class Model:
    """One model: its names, its sizes with their sources, its contracts.

    ``layers`` counts the layers of the language model, ``dense_layers`` those without experts,
    ``mla_layers`` those with latent attention, ``mtp_layers`` the extra layers for multi-token
    prediction that only the checkpoint holds. ``max_positions`` is that of the configuration.
    ``architecture`` is the whole model, built from these sizes and those in ``sizes``;
    ``published`` what is known of its checkpoint's index, None where it was not read.

    Raises ValueError where facts and contracts contradict each other.
    """

    name: str
    display: str
    repository: str
    hidden_size: Fact[int]
    kv_lora_rank: Fact[int]
    q_lora_rank: Fact[int]
    qk_rope_head_dim: Fact[int]
    qk_nope_head_dim: Fact[int]
    v_head_dim: Fact[int]
    heads: Fact[int]
    layers: Fact[int]
    dense_layers: Fact[int]
    mla_layers: Fact[int]
    mtp_layers: Fact[int]
    max_positions: Fact[int]
    norms: Norms
    kv: KVContract
    rotation: Rotation | None
    kv_latent_norm: LatentNorm
    compression: Compression
    sizes: tuple[tuple[str, Fact[int]], ...]
    architecture: Architecture
    published: Published | None

    def __post_init__(self) -> None:
        if self.kv.norm != self.norms.kv_latent:
            raise ValueError(f"{self.name}: kv.norm and norms.kv_latent differ")
        if self.kv.key_width != self.qk_rope_head_dim.value:
            raise ValueError(
                f"{self.name}: kv.key_width is {self.kv.key_width}, its source says "
                f"{self.qk_rope_head_dim.value}"
            )
        self._check_rotation()
        self._check_steps()
        for norm, size in (
            ("kv_latent", self.kv_lora_rank),
            ("q_latent", self.q_lora_rank),
            ("block", self.hidden_size),
        ):
            width = getattr(self.norms, norm).width
            if width != size.value:
                raise ValueError(
                    f"{self.name}: norms.{norm}.width is {width}, its source says {size.value}"
                )

    def _check_rotation(self) -> None:
        rope, facts = self.kv.rope, self.rotation
        if (rope is None) != (facts is None):
            raise ValueError(f"{self.name}: kv.rope and rotation must both be there, or neither")
        if rope is None or facts is None:
            return
        if facts.yarn.rotary_scale != 1:
            raise ValueError(
                f"{self.name}: mscale {facts.mscale.value} and mscale_all_dim "
                f"{facts.mscale_all_dim.value} differ, so that cos and sin are scaled: "
                "no RopeContract describes that"
            )
        said = {
            "theta": facts.theta.value,
            "factor": facts.factor.value,
            "max_positions": self.max_positions.value,
            **dict(zip(("low", "high"), facts.yarn.ramp(rope.width), strict=True)),
        }
        for name, value in said.items():
            if getattr(rope, name) != value:
                raise ValueError(
                    f"{self.name}: kv.rope.{name} is {getattr(rope, name)}, its source says {value}"
                )

    def _check_steps(self) -> None:
        wanted = set(get_args(StepName)) - (set() if self.kv.quant else {"quantisation"})
        names = [step.name for step in self.compression.steps]
        if sorted(names) != sorted(wanted):
            raise ValueError(
                f"{self.name}: the steps are {', '.join(names)}; kv wants each of "
                f"{', '.join(sorted(wanted))} once"
            )

    @property
    def moe_layers(self) -> int:
        return self.layers.value - self.dense_layers.value

    @property
    def down_width(self) -> int:
        """Features of the key-value down-projection: the latent, then the shared key."""
        return self.kv_lora_rank.value + self.qk_rope_head_dim.value

    @property
    def instances(self) -> int:
        """Key-value latent norms among the blocks that the model's page counts."""
        counted = self.kv_latent_norm.counted
        return self.moe_layers if counted == "MoE blocks" else self.mla_layers.value

    @property
    def up_width(self) -> int:
        """Features of the key-value up-projection: each head's content key and value."""
        return self.heads.value * (self.qk_nope_head_dim.value + self.v_head_dim.value)

    @property
    def head_width(self) -> int:
        """Features of a query's head, and of the key that it meets: content, then rotary ones."""
        return self.qk_nope_head_dim.value + self.qk_rope_head_dim.value

    @property
    def softmax_scale(self) -> float:
        """By what attention scores are multiplied, in fp64."""
        yarn = None if self.rotation is None else self.rotation.yarn
        return softmax_scale(self.head_width, yarn)
