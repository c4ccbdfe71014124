"""The verbs on finished runs: evaluate, attack, cross-play, rerun tests."""
