"""Chains: a start among five states, n moves, each one of a few permutations, and a claimed end.

Decisions that matter here:
- the first two permutations generate the whole symmetric group S5. Its word problem is complete for NC1 (Barrington,
  1989), so a transformer of constant depth cannot follow all chains unless TC0 = NC1;
- the first four form a Latin square with the identity, and so do the last four: a move fixes no state, and no two of
  four map a state to the same one. So a walk of four forgets its start by a factor of 4 in each move, and the claim
  alone carries no information;
- half of the claims of each split are true; a false one is uniform over the other four states;
- all chains (start and moves) of a data set differ, so no chain is in both splits, with any claim.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.seeding import generator
from nip_ray.settings.state_tracking import ChainSettings

NUM_STATES = 5
GENERATORS = (
    (1, 0, 3, 4, 2), (2, 3, 4, 1, 0), (3, 4, 0, 2, 1), (4, 2, 1, 0, 3),
    (1, 2, 3, 4, 0), (2, 3, 4, 0, 1), (3, 4, 0, 1, 2), (4, 0, 1, 2, 3),
)  # fmt: skip
"""Move -> the images of the states."""
TAKES_GA = torch.tensor(GENERATORS)


@dataclass(frozen=True)
class Chains:
    """I chains of n moves. move_IT: (I, n). state_IP: (I, n + 1), the true states at the places 0 to n. claim_I: their
    claimed ends."""

    move_IT: Tensor
    state_IP: Tensor
    claim_I: Tensor

    @property
    def length(self) -> int:
        """n."""
        return self.move_IT.shape[1]

    @property
    def label_I(self) -> Tensor:
        """1 if the claim is true, else 0."""
        return (self.state_IP[:, -1] == self.claim_I).long()

    def rows(self, index_N: Tensor) -> "Chains":
        """Some of the chains."""
        return Chains(self.move_IT[index_N], self.state_IP[index_N], self.claim_I[index_N])

    def to(self, device: str) -> "Chains":
        """The same on another device."""
        return Chains(self.move_IT.to(device), self.state_IP.to(device), self.claim_I.to(device))

    def contents(self) -> list[tuple[int, ...]]:
        """Start and moves of each chain, without the claim."""
        return [tuple(row) for row in torch.cat([self.state_IP[:, :1], self.move_IT], 1).tolist()]


def draw_chains(settings: ChainSettings, seed: int) -> Chains:
    """Chains of `seed`: `num_train` for training, then `num_test` held out. Raises UserError if there are too few."""
    count = settings.num_train + settings.num_test
    exist = NUM_STATES * settings.num_generators**settings.length
    if count > exist:
        raise UserError(
            f"scenario.num_train: {settings.num_train} and {settings.num_test} chains, but there are only {exist}"
            f" different ones of {settings.length} moves out of {settings.num_generators}; lower num_train or num_test,"
            " or raise length or num_generators"
        )
    noise = generator(seed, "chains", settings.length, settings.num_generators)
    found: dict[tuple[int, ...], None] = {}
    while len(found) < count:
        start_I1 = torch.randint(NUM_STATES, (count, 1), generator=noise)
        move_IT = torch.randint(settings.num_generators, (count, settings.length), generator=noise)
        found |= dict.fromkeys(map(tuple, torch.cat([start_I1, move_IT], 1).tolist()))
    chain_IP = torch.tensor(list(found)[:count])
    state_IP, move_IT = walk(chain_IP[:, 0], chain_IP[:, 1:]), chain_IP[:, 1:]
    off_I = torch.randint(1, NUM_STATES, (count,), generator=noise)
    place_I = torch.cat([torch.arange(settings.num_train), torch.arange(settings.num_test)])  # within the split
    return Chains(move_IT, state_IP, (state_IP[:, -1] + off_I * (place_I % 2)) % NUM_STATES)


def walk(start_I: Tensor, move_IT: Tensor) -> Tensor:
    """(I, n + 1): the states that `move_IT` (I, n) passes through from `start_I` (I,) on."""
    states = [start_I]
    for move_I in move_IT.unbind(1):
        states.append(TAKES_GA.to(start_I.device)[move_I, states[-1]])
    return torch.stack(states, 1)
