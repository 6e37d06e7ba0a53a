"""From a config.json to contracts and sizes: `latentkv.models.from_config`. No torch."""
