"""How a file of any kind is read here: within bounds, and its JSON strictly. No torch."""
