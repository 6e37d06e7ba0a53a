"""replace_latent_norms: other people's models on latentkv, and back."""

import copy
import io
import pickle
import sys
from dataclasses import replace

import pytest
import torch
from helpers import ORDERS, assert_same, contract, random_gain, random_rows, share_and_ulp
from host_models import QUERY_WIDTH, WIDTH, Attention, Host, Norm, config

from latentkv import LatentRMSNorm, definition, models, replace_latent_norms
from latentkv.integrations import restore_latent_norms

KV = ["model.layers.0.self_attn.kv_a_layernorm", "model.layers.1.self_attn.kv_a_layernorm"]
NAMES = {"DeepseekV3": KV, "DeepseekV32": KV, "KimiLinear": KV[1:]}  # Kimi's first layer is linear
ORDER = dict.fromkeys(NAMES, "cast_then_gain") | {"DeepseekV32": "gain_then_cast"}
AFTER = contract(WIDTH, "gain_then_cast")
# The range: logits far enough apart for a greedy choice.
SIZES = dict(
    vocab_size=64, hidden_size=64, intermediate_size=64, moe_intermediate_size=32,
    num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, kv_lora_rank=WIDTH,
    q_lora_rank=QUERY_WIDTH, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
    num_experts_per_tok=2, num_local_experts=4, n_group=1, topk_group=1, first_k_dense_replace=1,
    pad_token_id=0, bos_token_id=0, eos_token_id=1, initializer_range=0.2,
)  # fmt: skip
LINEAR = {"linear_num_heads": 2, "layer_types": ["linear_attention", "full_attention"]}
MORE = {"KimiLinear": LINEAR, "DeepseekV32": {"index_head_dim": 16, "index_n_heads": 2}}
every_model = pytest.mark.parametrize("name", NAMES)
every_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
IDS = torch.randint(2, 64, (2, 10), generator=torch.Generator().manual_seed(2))


@pytest.fixture(autouse=True)
def one_thread(threads):
    torch.set_num_threads(1)  # nothing here is worth a second


def tiny(name, dtype=torch.bfloat16):
    """Two layers of transformers' model, random weights, gains that are not powers of two."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = getattr(transformers, f"{name}Config")(**SIZES, **MORE.get(name, {}))
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(dtype).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "norm" in path:
                parameter.copy_(random_gain(*parameter.shape, dtype=dtype))
    return model


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


@every_dtype
@every_model
def test_each_norm_gives_the_definitions_bits_in_forward_and_generate(name, dtype):
    model = tiny(name, dtype)
    greedy, calls = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}, []
    before, tokens, keys = logits(model), model.generate(IDS, **greedy), [*model.state_dict()]
    assert replace_latent_norms(model) == NAMES[name]
    assert [*model.state_dict()] == keys
    for norm in map(model.get_submodule, NAMES[name]):
        assert type(norm) is LatentRMSNorm and norm.contract == contract(WIDTH, ORDER[name])
        norm.register_forward_hook(lambda norm, args, y: calls.append((norm, args[0].clone(), y)))
    after, again = logits(model), model.generate(IDS, **greedy)
    assert len(calls) == len(NAMES[name]) * (1 + 5)  # the forward; prompt and four tokens
    for norm, x, y in calls:
        assert_same(y.detach(), definition.rms_norm(x, norm.weight.detach(), norm.contract))
    if dtype == torch.float32:
        # Both orders agree in fp32, so only the bracketing of one sum changed: some units in the
        # last place, amplified by two layers, and no greedy choice among 64 tokens.
        assert torch.equal(again, tokens)
        assert (after - before).abs().max() < 1e-4
    assert restore_latent_norms(model) == NAMES[name]
    assert_same(logits(model), before)


@every_dtype
@every_model
def test_the_deviation_that_it_removes(name, dtype):
    model = tiny(name, dtype)
    path = NAMES[name][-1]
    # A slice 40 apart as the model's own; 2,000 rows, so that 1e-4 is more than six outputs.
    x = random_rows(2000, 40, dtype=dtype)[:, :WIDTH]
    right = definition.rms_norm(x, random_gain(WIDTH, dtype), contract(WIDTH, ORDER[name]))
    with torch.no_grad():
        share, ulp = share_and_ulp(model.get_submodule(path)(x), right)
        replace_latent_norms(model)
        assert_same(model.get_submodule(path)(x), right)
    if dtype == torch.bfloat16:
        # transformers' class for V3.2 rounds before the gain, DeepSeek's code after it: a quarter.
        # The others differ where the bracketing of the sum moved a value over a rounding border.
        assert 0.2 < share < 0.3 and ulp == 1 if name == "DeepseekV32" else share < 1e-4


@every_dtype
@every_model
def test_a_training_step_reaches_the_very_parameters(name, dtype):
    model = tiny(name, dtype).train()
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)  # steps that bf16 can hold
    gains = [parameters[f"{each}.weight"] for each in replace_latent_norms(model, query=True)]
    assert len(gains) == 2 * len(NAMES[name])
    assert all(p is parameters[k] for k, p in model.named_parameters())
    before, losses = [gain.detach().clone() for gain in gains], []
    for _ in range(2):
        loss = model(IDS, labels=IDS).loss
        loss.backward()
        losses.append(loss.item())
        for gain in gains:
            assert gain.grad.dtype == dtype and gain.grad.isfinite().all() and gain.grad.any()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[1] < losses[0]
    assert not any(map(torch.equal, before, gains))
    restore_latent_norms(model)
    assert all(p is parameters[k] for k, p in model.named_parameters())


@every_model
def test_checkpoints_go_both_ways(name):
    model, fresh, file = tiny(name), tiny(name), io.BytesIO()
    replace_latent_norms(model)
    right = logits(model)
    torch.save(model.state_dict(), file)
    for assign in (False, True):  # first into transformers' own modules, then into ours
        with torch.no_grad():
            for parameter in fresh.parameters():
                parameter.zero_()
        file.seek(0)
        fresh.load_state_dict(torch.load(file, weights_only=True), assign=assign)
        replace_latent_norms(fresh)
        assert_same(logits(fresh), right)


@pytest.mark.parametrize(
    ("where", "model"),
    [
        (config("deepseek_v2"), "kimi-k2"),
        (config("deepseek_v3", kv_lora_rank=WIDTH), "kimi-k2"),
        (config("kimi_k2", rms_norm_eps=1e-5), "kimi-k2"),
        (config("deepseek_v32"), "deepseek-v3.2-exp"),
        (config("kimi_linear", rms_norm_eps=1e-5), "kimi-k3"),
        (config("kimi_k3", text_config={"kv_lora_rank": WIDTH}), "kimi-k3"),
        (config("kimi_k25", text_config=config("deepseek_v3", kv_lora_rank=WIDTH)), "kimi-k2"),
        (config("somebodys", language_config=config("deepseek_v2")), "kimi-k2"),
        ({"model_type": "somebodys", "llm_config": {"model_type": "kimi_linear"}}, "kimi-k3"),
    ],
    ids=str,
)
def test_the_contract_of_a_config(where, model):
    host = Host(config=where)
    replace_latent_norms(host)
    right = replace(models.get(model).norms.kv_latent, width=WIDTH)
    assert [layer.kv_a_layernorm.contract for layer in host.layers] == [right, right]


def test_the_nearest_config_decides():
    inner = Host(config=config("deepseek_v32"))
    inner.layers[0].config = config("kimi_linear")
    inner.layers[1].config = config("")  # says nothing, as a config's base class does
    replace_latent_norms(Host(inner, config=config("llama")))
    assert inner.layers[0].kv_a_layernorm.contract.order == "cast_then_gain"
    assert inner.layers[1].kv_a_layernorm.contract.order == "gain_then_cast"


@pytest.mark.parametrize("order", ORDERS)
def test_a_contract_of_ones_own(order):
    for where in (None, config("llama"), config("deepseek_v3", q_lora_rank=QUERY_WIDTH)):
        attention = Attention(kv_norm=Norm(), q_norm=Norm(QUERY_WIDTH))
        host = Host(attention, config=where)
        names = replace_latent_norms(host, contract=contract(WIDTH, order), query=True)
        assert names == ["layers.0.kv_norm", "layers.0.q_norm"]
        assert attention.kv_norm.contract == contract(WIDTH, order)
        assert attention.q_norm.contract == contract(QUERY_WIDTH, order)


def test_only_a_query_latents_norm_beside_the_other():
    heads = Attention(q_norm=Norm(16), k_norm=Norm(16))
    latent = Attention(q_a_layernorm=Norm(QUERY_WIDTH), kv_a_layernorm=Norm())
    direct = Attention(q_a_layernorm=None, kv_a_layernorm=Norm())
    host = Host(heads, latent, direct, config=config(q_lora_rank=QUERY_WIDTH))
    assert replace_latent_norms(host) == ["layers.1.kv_a_layernorm", "layers.2.kv_a_layernorm"]
    assert replace_latent_norms(host, query=True) == ["layers.1.q_a_layernorm"]
    assert latent.q_a_layernorm.contract == contract(QUERY_WIDTH)
    assert type(heads.q_norm) is Norm
    assert len(restore_latent_norms(host)) == 3


def test_a_second_call_replaces_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)  # no host is imported: it would raise
    host = Host(config=config())
    assert len(replace_latent_norms(host)) == 2
    modules = [*host.modules()]
    assert replace_latent_norms(host) == [] and [*host.modules()] == modules
    with pytest.raises(ValueError, match="layers.0.*follows .*cast_then.*restore_latent_norms"):
        replace_latent_norms(host, contract=AFTER)
    assert len(restore_latent_norms(host)) == 2 and restore_latent_norms(host) == []
    own = LatentRMSNorm(contract(WIDTH))
    assert replace_latent_norms(Host(Attention(kv_norm=own), config=config())) == []


def test_a_module_with_several_names_is_replaced_under_each():
    norm = Norm()
    shared, other = Attention(kv_a_layernorm=norm), Attention(kv_a_layernorm=norm)
    host = Host(shared, other, shared, torch.nn.ModuleList([norm]), config=config())
    names = [*(f"layers.{i}.kv_a_layernorm" for i in range(3)), "layers.3.0"]
    assert replace_latent_norms(host) == names
    assert len({id(host.get_submodule(each)) for each in names}) == 1
    assert len(list(host.parameters())) == 1
    assert restore_latent_norms(host) == names
    assert all(host.get_submodule(each) is norm for each in names)


def test_hooks_handles_and_mode_move_along():
    host = Host(config=config()).eval()
    norm, seen = host.layers[0].kv_a_layernorm, []
    norm.weight.requires_grad_(False)
    handle = norm.register_forward_hook(lambda module, args, y: seen.append(module))
    replace_latent_norms(host)
    stand_in, _ = host.layers[0].kv_a_layernorm, host(random_rows(3, WIDTH))
    assert not stand_in.training and stand_in.weight is norm.weight
    assert seen == [stand_in]
    handle.remove()
    stand_in.register_forward_pre_hook(lambda module, args: seen.append(module))
    host.train()
    restore_latent_norms(host)
    assert norm.training and not norm.weight.requires_grad
    host(random_rows(3, WIDTH))
    assert seen == [stand_in, norm]  # the first hook is gone, the second came along


def test_on_the_meta_device_and_assigned():
    host = Host(config=config()).to("meta")
    replace_latent_norms(host)
    assert all(parameter.is_meta for parameter in host.parameters())
    assert host(torch.empty(3, WIDTH, device="meta", dtype=torch.bfloat16)).shape == (3, WIDTH)
    host.load_state_dict(Host().state_dict(), assign=True)
    restore_latent_norms(host)  # what was assigned meanwhile comes along
    x = random_rows(3, WIDTH)
    with torch.no_grad():
        assert_same(host(x), Host()(x))


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_can_be_restored(clone):
    host, x = Host(config=config("deepseek_v32")), random_rows(3, WIDTH)
    replace_latent_norms(host)
    other = clone(host)
    with torch.no_grad():
        assert_same(other(x), host(x))
        for parameter in other.parameters():
            parameter.fill_(3)
        assert len(restore_latent_norms(other)) == 2
        assert len(restore_latent_norms(host)) == 2  # untouched by the copy
        for each, tripled in ((other, True), (host, False)):
            norm = each.layers[0].kv_a_layernorm
            assert type(norm) is Norm and bool(norm.weight.eq(3).all()) is tripled


# The guards of torch.compile decide whether old code runs on, and they are the same with "eager".
@pytest.mark.parametrize("how", ["wrapped", "in place", "each layer"])
def test_a_compiled_model_compiles_again(how):
    torch._dynamo.reset()
    host = model = Host(config=config("deepseek_v32"))
    if how == "wrapped":
        model = torch.compile(host, backend="eager")
    elif how == "in place":
        host.compile(backend="eager")
    else:
        host.layers[0] = torch.compile(host.layers[0], backend="eager")
    x = random_rows(400, WIDTH)
    with torch.no_grad():
        before = model(x)
        assert len(replace_latent_norms(model)) == 2
        after = model(x)
        assert_same(after, host.layers[1](host.layers[0](x)))
        assert_same(host.layers[0](x), definition.rms_norm(x, random_gain(WIDTH), AFTER))
        assert share_and_ulp(before, after)[0] > 0.1
        restore_latent_norms(model)
        assert_same(model(x), before)


def having(**more):
    norm = Norm()
    vars(norm).update(more)
    return norm


@pytest.mark.parametrize(
    ("norm", "message"),
    [
        (Norm(64), r"layers\.1\.kv_norm\.weight has shape \(64,\), the contract's width is 32"),
        (Norm((4, 8)), r"weight has shape \(4, 8\)"),
        (Norm(eps=1e-5), r"kv_norm \(Norm\) applies variance_epsilon=1e-05, .* 1e-06.*correct_eps"),
        (torch.nn.RMSNorm(WIDTH), r"RMSNorm\) applies eps=None"),
        (torch.nn.LayerNorm(WIDTH, eps=1e-6), r"LayerNorm\) holds weight, bias; a latent norm"),
        (torch.nn.Identity(), r"Identity\) holds no parameter"),
        (torch.nn.utils.parametrizations.weight_norm(Norm()), r"holds parametrizations\.weight"),
        (torch.compile(Norm(), backend="eager"), r"holds _orig_mod\.weight.*before it is wrapped"),
        (having(_modules={"inner": Norm()}), r"holds weight, inner\.weight, inner; a latent norm"),
        (having(forward=print), r"has a forward of its own.*offloading.*before them"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else None,
)
def test_what_a_contract_cannot_stand_in_for_is_refused(norm, message):
    host = Host(Attention(), Attention(kv_norm=norm), config=config(kv_lora_rank=WIDTH))
    with pytest.raises(ValueError, match=message):
        replace_latent_norms(host)
    assert type(host.layers[0].kv_a_layernorm) is Norm  # all or nothing


def test_another_eps_can_be_corrected():
    host = Host(Attention(kv_norm=Norm(eps=1e-5)), config=config("kimi_linear"))
    assert replace_latent_norms(host, correct_eps=True) == ["layers.0.kv_norm"]
    assert host.layers[0].kv_norm.contract == contract(WIDTH)


KNOWN = "known model types: deepseek_v2, deepseek_v3, deepseek_v32, kimi_k2, kimi_k3, kimi_linear"


@pytest.mark.parametrize(
    ("host", "message"),
    [
        (Host(config=config("glm")), rf"0\.kv_a_layernorm \(Norm\) in Host: .*'glm'; {KNOWN}"),
        (Host(config=config("a", text_config=config("b"))), rf"says 'a' with 'b'; {KNOWN}"),
        (Host(), rf"it has no config; {KNOWN}.*contract=NormContract\(width, eps, order\)"),
        (Host(Norm(), config=config("llama")), rf"Host has no module .*'llama'.*{KNOWN}"),
        (Norm(), "Norm has no module named kv_a_layernorm or kv_norm"),
    ],
    ids=range(5),
)
def test_an_unknown_model_is_refused_with_what_was_found(host, message):
    with pytest.raises(ValueError, match=message):
        replace_latent_norms(host)


def test_arguments_of_another_type_are_refused():
    for function in (replace_latent_norms, restore_latent_norms):
        with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got str"):
            function("kimi-k2")
    with pytest.raises(TypeError, match="contract must be a NormContract, got float"):
        replace_latent_norms(Host(), contract=1e-6)
