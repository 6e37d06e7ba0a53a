"""replace_latent_norms: each model type's class in transformers, and the page's examples."""

import re
from importlib import import_module
from pathlib import Path

import pytest
import torch
from helpers import assert_same, contract, random_gain, random_rows, share_and_ulp
from host_models import WIDTH, Attention, Host, config

from latentkv import definition, replace_latent_norms
from latentkv.models.families import FAMILIES


@pytest.mark.parametrize("example", [0, 1])
def test_the_examples_in_the_documents_run(example, capsys):
    pytest.importorskip("transformers", reason="transformers is not installed")
    page = (Path(__file__).parents[1] / "docs/integrations.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[example]
    exec(compile(code, "docs/integrations.md", "exec"), {})
    said = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == said and len(said) >= 2


CLASSES = {name: family.norm for name, family in FAMILIES.items() if family.norm}


@pytest.mark.parametrize("model_type", CLASSES)
def test_the_deviation_of_each_types_own_class(model_type):
    pytest.importorskip("transformers", reason="transformers is not installed")
    package, name = CLASSES[model_type].package, CLASSES[model_type].name
    module = import_module(f"transformers.models.{package}.modeling_{package}")
    norm = getattr(module, name)(WIDTH).bfloat16()
    with torch.no_grad():
        norm.weight.copy_(random_gain(WIDTH))
    host = Host(Attention(kv_a_layernorm=norm), config=config(model_type))
    x = random_rows(2000, WIDTH)  # so that 1e-4 is more than six outputs
    with torch.no_grad():
        before = host(x)
        assert replace_latent_norms(host) == ["layers.0.kv_a_layernorm"]
        right = definition.rms_norm(x, norm.weight, contract(WIDTH))
        assert_same(host(x), right)
    share, _ = share_and_ulp(before, right)
    assert share < 1e-4
