"""Models side by side: what differs is marked, and what follows from it said."""

from __future__ import annotations

import dataclasses

from latentkv import models
from latentkv.compare import compare
from latentkv.models.spec import Fact


def test_side_by_side_marks_what_differs_and_says_what_follows():
    comparison = compare([models.get(name) for name in models.names()])
    rows = {row.field: row for row in comparison.rows}
    alone = {field: [i for i in range(3) if row.stands_alone(i)] for field, row in rows.items()}
    assert rows["order"].differs and alone["order"] == [2]
    assert rows["eps in config"].differs and alone["eps in config"] == [1]
    assert rows["block norm"].differs and alone["block norm"] == [1]
    assert rows["instances"].differs and alone["instances"] == []
    assert rows["key rotation"].differs and alone["key rotation"] == []
    assert rows["rotary frequencies"].differs and rows["softmax scale"].differs
    assert alone["latent quantisation"] == [2]
    assert [cell.value for cell in rows["cache bytes a token"].cells] == [
        "bfloat16 1,152 × 61 = 70,272",
        "bfloat16 1,152 × 24 = 27,648",
        "bfloat16 1,152 × 61 = 70,272; fp8_ds_mla 656 × 61 = 40,016",
    ]
    assert rows["rotary frequencies"].cells[0].place == "config.json 48, 53"
    assert rows["key rotation"].cells[2].place == "model.py 568, 405–425"
    for same in ("eps applied", "parameters each", "query latent norm"):
        assert not rows[same].differs and alone[same] == []
    said = "\n".join(comparison.consequences)
    assert "cast_then_gain (Kimi K2, Kimi K3) rounds twice" in said
    assert "Kimi K3's configuration says 10⁻⁵ (config.json 245)" in said
    assert "DeepSeek-V3.2-Exp 58 MoE blocks, 61 over the whole model" in said
    assert "Kimi K2: half; DeepSeek-V3.2-Exp: interleaved; Kimi K3: not rotated at all" in said
    assert "1.81326 × 192^-0.5 in Kimi K2, 1 × 192^-0.5 in Kimi K3, 1.87385 × 192^-0.5" in said
    assert "in DeepSeek-V3.2-Exp attention reads what the latent's e4m3 codes stand for" in said
    assert "24 of Kimi K3's 93 layers keep a latent" in said
    assert "107,136 bytes a token instead of 27,648" in said  # 1,152 × 93, 1,152 × 24


def test_models_that_agree_have_no_consequences():
    k2 = models.get("kimi-k2")
    same = dataclasses.replace(k2, dense_layers=Fact(0, k2.dense_layers.place))
    comparison = compare([same, same, same])
    assert not any(row.differs for row in comparison.rows)
    assert comparison.consequences == ()
