"""One copy of the batched core as an environment: the common part of the RLlib, PettingZoo and Gymnasium environments.
Needs no Ray."""
