"""Pure torch mathematics of learning: distributions, advantages, losses, parameter groups. No framework, no protocol,
no ray."""
