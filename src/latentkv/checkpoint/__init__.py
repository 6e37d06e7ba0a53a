"""Checkpoints without their weights: config.json, indices and safetensors headers. No torch."""
