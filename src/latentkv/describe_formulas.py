"""The formulas of the key-value path's components, in LaTeX, and what products say. No torch.

What they use converts to MathML: no environment but aligned, no macro of a package.
"""

from __future__ import annotations

from .contracts import LatentQuant, RopeContract
from .models.spec import Model

_SCALE = {
    "act_quant": r"2^{\lceil\log_2(\max(a_g,10^{-4})/448)\rceil}",
    "flashmla": r"2^{\lceil\log_2\max(a_g/448,10^{-4})\rceil}",
    "vllm_fused": r"2^{\lceil\log_2\max(a_g/448,10^{-4})\rceil}",
    "vllm_cuda": r"\max(a_g/448,2^{-126})",
    "sglang": "a_g/448",
}


def turned(rope: RopeContract) -> str:
    """A pair's rotation, and the YaRN frequencies that it turns by."""
    pairs, width = rope.width // 2, rope.width
    if rope.layout == "half":
        first, second = "k^{R}_i", f"k^{{R}}_{{i+{pairs}}}"
    else:
        first, second = "k^{R}_{2i}", "k^{R}_{2i+1}"
    power = rf"\theta^{{2i/{width}}}"
    factor = f"{rope.factor:g}"
    stretched = (
        rf"\frac{{1}}{{{factor}\,{power}}}"
        if rope.interpolated == "power"
        else rf"\frac{{1/{power}}}{{{factor}}}"
    )
    return aligned(
        rf"{first}&=k_{{2i}}\cos(p\,\omega_i)-k_{{2i+1}}\sin(p\,\omega_i)",
        rf"{second}&=k_{{2i+1}}\cos(p\,\omega_i)+k_{{2i}}\sin(p\,\omega_i)",
        rf"\omega_i&=(1-r_i)\,\frac{{1}}{{{power}}}+r_i\,{stretched}",
        rf"r_i&=\min\left(1,\max\left(0,\frac{{i-{rope.low}}}{{{rope.high - rope.low}}}"
        r"\right)\right)",
        rf"\theta&={rope.theta:.10g},\quad 0\le i<{pairs}",
    )


def quantised(quant: LatentQuant) -> str:
    """A group's scale, its codes, and what they stand for."""
    return aligned(
        r"a_g&=\max_{j\in g}|\hat c_j|",
        rf"s_g&={_SCALE[quant.rule]}",
        r"q_j&=\mathrm{e4m3}(\hat c_j/s_g)",
        r"\tilde c_j&=s_g\,q_j",
        rf"|g|&={quant.group}",
    )


def aligned(*lines: str) -> str:
    """Lines under each other, their equals signs too."""
    return r"\begin{aligned}" + r"\\".join(lines) + r"\end{aligned}"


def part(symbol: str, first: int, last: int) -> str:
    """Features ``first`` to ``last``, counted from 1."""
    return rf"{symbol}_{{{first}:{last}}}"


def product(model: Model) -> str:
    """What is said of a matrix's arithmetic, and how the checkpoint has the matrix."""
    said = (
        "A matrix product, its result rounded once to the input's type; in which order it is "
        "summed is the library's, so no contract pins its bits."
    )
    storage = model.architecture.storage
    if storage.format != "fp8_block":
        return said
    rows, columns = storage.block
    return (
        f"{said} The checkpoint has the weight in e4m3, with a float32 scale for each tile of "
        f"{rows} × {columns}."
    )


ARITHMETIC = {
    "cast_then_gain": (
        "The normalisation runs in float32; its result is cast back to the input type, "
        "and only then multiplied by the gain."
    ),
    "gain_then_cast": (
        "The normalisation runs in float32 and so does the product with the gain; "
        "a single cast back to the input type comes last."
    ),
}


def norm_formula(gain: str, eps: float) -> str:
    """An RMSNorm's, with the symbol of its gain."""
    mantissa, exponent = decimal_parts(eps)
    factor = "" if mantissa == "1" else rf"{mantissa}\times"
    return (
        r"\begin{aligned}m_2(x)&=\frac{1}{d}\sum_{j=1}^d x_j^2\\"
        rf"y&={gain}\odot\frac{{x}}{{\sqrt{{m_2(x)+\varepsilon}}}}\\"
        rf"\varepsilon&={factor}10^{{{exponent}}}\end{{aligned}}"
    )


def decimal_parts(value: float) -> tuple[str, int]:
    """Mantissa and exponent of the shortest decimal that reads back as ``value``."""
    digits, _, exponent = f"{value!r}".partition("e")
    if not exponent:  # repr writes 0.0001 in full
        for precision in range(17):
            digits, _, exponent = f"{value:.{precision}e}".partition("e")
            if float(f"{digits}e{exponent}") == value:
                break
    return digits, int(exponent)


def scientific(value: float) -> str:
    """10⁻⁶, or 2.5 × 10⁻⁶."""
    mantissa, exponent = decimal_parts(value)
    power = "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if mantissa == "1" else f"{mantissa} × {power}"
