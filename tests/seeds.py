"""The seed pages, read as data: what `latentkv show` must carry over, fact by fact.

The pages lie beside the repository, in ../shared/seeds; without them the tests that compare with
them are skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from helpers import NO_SHARED as MISSING  # noqa: F401 - one name for tests of pages
from helpers import SHARED

LINES = r"\d+(?:–\d+)?"


@dataclass(frozen=True)
class SeedSource:
    grade: str
    claim: str
    id: str
    repository: str
    file: str
    revision: str
    lines: str


@dataclass(frozen=True)
class Seed:
    model: str
    title: str
    path: list[str]
    learned: bool
    call: str
    call_line: int | None
    summary: str
    formula: str
    input: tuple[str, list[tuple[str, str]]]  # symbol, (size, name) of each axis
    output: tuple[str, list[tuple[str, str]]]
    totals: tuple[int, int, str, int]  # width, instances, what is counted, total
    sentence: str  # the arithmetic or the origin of eps, without its place
    sentence_file: str
    sentence_lines: str
    per_instance: int
    calculation: str
    owner: str
    verdict: str
    code_file: str
    code_heading: str
    excerpts: dict[str, list[str]]  # "94–111" -> its lines
    sources: list[SeedSource]

    def line(self, number: int) -> str | None:
        """A line of the model's own code, where an excerpt shows it."""
        for lines, text in self.excerpts.items():
            first = int(lines.split("–")[0])
            if first <= number < first + len(text):
                return text[number - first]
        return None


def load() -> dict[str, Seed]:
    """Display name -> page."""
    pages = [parse(path.read_text("utf-8")) for path in sorted(SHARED.glob("seeds/*.txt"))]
    return {page.model: page for page in pages}


def parse(text: str) -> Seed:
    model, header_title, *_ = text.split("\n", 1)[0].split(" · ")
    head, _, tail = text.partition("\n\nCode")
    blocks = head.split("\n\n")[1:]
    path, title, call, summary, formula, shapes, place = blocks[:7]
    assert title == header_title
    learned = re.fullmatch(r"(learned)(self\.\w+\(\w+\))(?: · (\d+))?", call)
    axes = re.fullmatch(
        r"in: \$(.+)\$ \[(.+)\]\nout: \$(.+)\$ \[(.+)\]\n"
        r"parameters: ([\d,]+) · × (\d+) (.+) = ([\d,]+)",
        shapes,
    )
    cited = re.fullmatch(rf"(.+) \((\S+) ({LINES}(?:, {LINES})*)\)\.", place)
    numbers = re.search(r"^Learned gain\t(.+)\t([\d,]+)\nPer-instance total\t\t\2$", head, re.M)
    assert learned and axes and cited and numbers
    heading = re.match(rf"(\S+) ({LINES}(?:, {LINES})*)\n", tail)
    assert heading
    code, _, evidence = tail.partition("\n\nSources")
    return Seed(
        model=model,
        title=title,
        path=path.split(" › "),
        learned=learned[1] == "learned",
        call=learned[2],
        call_line=int(learned[3]) if learned[3] else None,
        summary=summary,
        formula=formula,
        input=(axes[1], _axes(axes[2])),
        output=(axes[3], _axes(axes[4])),
        totals=(_int(axes[5]), int(axes[6]), axes[7], _int(axes[8])),
        sentence=cited[1],
        sentence_file=cited[2],
        sentence_lines=cited[3],
        per_instance=_int(numbers[2]),
        calculation=numbers[1].strip("$"),
        owner=next(block for block in blocks if block.startswith("Each ")),
        verdict=blocks[-1],
        code_file=heading[1],
        code_heading=heading[2],
        excerpts=_excerpts(code, heading[1]),
        sources=_sources(evidence),
    )


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def _axes(text: str) -> list[tuple[str, str]]:
    pairs = [axis.split(" ", 1) for axis in text.split(", ")]
    return [(size, name) for size, name in pairs]


def _excerpts(code: str, file: str) -> dict[str, list[str]]:
    parts = re.split(rf"\n\n{re.escape(file)} ({LINES})\n\n", code)[1:]
    return {lines: text.split("\n") for lines, text in zip(parts[::2], parts[1::2], strict=True)}


def _sources(evidence: str) -> list[SeedSource]:
    number, _, rest = evidence.partition("\n")
    found = [
        SeedSource(*match.groups())
        for match in re.finditer(
            r"^(Direct evidence)\n\n(.+)\n\n(\S+) · (\S+) / (\S+)\n"
            rf"Pinned revision (\w+) ↗ · lines ({LINES})$",
            rest,
            re.M,
        )
    ]
    assert len(found) == int(number)
    return found


# Terms that a sentence can carry, each as a pattern that matches them in any wording. Spelling
# of "normalise" and the order of words are free; what is said is not.
TERMS = {
    "RMSNorm": r"RMSNorm",
    "MLA": r"\bMLA\b",
    "latent attention": r"latent attention",
    "latent": r"\blatent\b",
    "key and value": r"key(?:–| and )value",
    "query": r"\bquery\b",
    "down-projection": r"down-projection",
    "up-projection": r"up-project",
    "output": r"\boutput\b",
    "gate": r"\bgate\b",
    "full rank": r"full-rank",
    "projection": r"\bprojection",
    "joint": r"\bjoint\b",
    "shared": r"\bshared?\b",
    "all heads": r"\ball heads",
    "each head": r"per-head|every head|each head",
    "content": r"\bcontent\b",
    "rotary": r"\brotary\b",
    "one rotary key": r"\bone rotary key",
    "rotary embedding": r"rotary embedding",
    "not created": r"creates no|not created|no \S+ \S+ is created",
    "unrotated": r"unrotated|not rotated",
    "rotated": r"\brotated\b",
    "64 features": r"\b64\b.*features",
    "gain": r"\bgain\b",
    "feature": r"\bfeatures?\b",
    "one each": r"one gain (?:per|for each) feature",
    "float32": r"\bfloat32\b",
    "residual argument": r"residual argument",
    "adds the residual first": r"first adds|begins by adding",
    "fused": r"\bfus(?:ed|ing)\b",
    "next normalisation": r"next normali[sz]ation|normali[sz]ation that follows",
    "addition": r"\baddition\b",
    "normalised": r"normali[sz](?:ed|ation)",
    "owns": r"\bowns\b|\bholds\b|of its own",
    "root mean square": r"root mean square",
    "each position": r"each position",
    "learned": r"\blearned\b",
    "cast back": r"cast back",
    "input type": r"input type",
    "multiplied": r"multipl|\bproduct\b",
    "default": r"\bdefault\b",
    "eps": r"ε = 10⁻⁶",
    "class": r"KimiRMSNorm|DeepseekV3RMSNorm",
    "derived": r"\bderived\b",
    "configured": r"\bconfigured\b",
    "width": r"feature width",
    "model total": r"model total|total over the model",
    "matches": r"\bmatches\b",
    "checkpoint's tensors": r"checkpoint(?:['’]s)? tensors",
    "not counted": r"not been independently counted|independent count .* not been made",
    "instance": r"\binstance\b",
    "vector": r"\bvector\b",
}


def terms(sentence: str) -> set[str]:
    """The technical content of a sentence: which of `TERMS` it carries."""
    return {term for term, pattern in TERMS.items() if re.search(pattern, sentence, re.I)}
