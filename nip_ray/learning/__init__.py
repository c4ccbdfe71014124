"""Mathematics of learning in pure torch: distributions, advantages, losses, parameter groups. No protocol or Ray."""
