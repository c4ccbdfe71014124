"""One copy of the batched core as an environment: what the RLlib, PettingZoo and Gymnasium environments share. Nothing
here needs ray."""
