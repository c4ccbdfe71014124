"""What a user asks of finished runs: evaluate, attack, cross-play, tests again."""
