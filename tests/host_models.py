"""Somebody's model with latent norms, as small as it gets: for `replace_latent_norms`."""

from types import SimpleNamespace

import eager
import torch
from helpers import random_gain

WIDTH, QUERY_WIDTH = 32, 48


class Norm(torch.nn.Module):
    def __init__(self, width=WIDTH, eps=1e-6):
        super().__init__()
        self.weight = torch.nn.Parameter(random_gain(width))
        self.variance_epsilon = eps

    def forward(self, x):
        return eager.kimi(x, self.weight, self.variance_epsilon)


class Attention(torch.nn.Module):
    def __init__(self, **norms):
        super().__init__()
        for name, norm in (norms or {"kv_a_layernorm": Norm()}).items():
            setattr(self, name, norm)

    def forward(self, x):
        return self.kv_a_layernorm(x)


class Host(torch.nn.Module):
    """Somebody's model: layers in a ModuleList, a config or none."""

    def __init__(self, *layers, config=None):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers or [Attention(), Attention()])
        self.config = config

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def config(model_type="deepseek_v3", **more):
    return SimpleNamespace(model_type=model_type, **more)
