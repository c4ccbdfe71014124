"""Mathematics of learning in pure torch: distributions, advantages, losses, parameter groups. No framework, protocol or
Ray."""
