"""The interface of a scenario for the batched core."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from nip_ray.play.rollout import Dialogue, GameRules
from nip_ray.protocols import Judgement, Protocol


def columns(places: Sequence[int]) -> slice | list[int]:
    """`places` as an index: a slice if they are evenly spaced, which copies nothing and moves none to the device."""
    step = places[1] - places[0] if len(places) > 1 else 1
    even = step > 0 and all(after - before == step for before, after in itertools.pairwise(places))
    return slice(places[0] if places else 0, places[-1] + 1 if places else 0, step) if even else list(places)


class Scenario(ABC):
    """A task: its instances, an agent's observations of one, and the networks that play it.

    Instances of all splits are in one table, so that an id alone determines an observation in any process. protocol:
    the protocol. num_symbols: S, main-message alphabet. message_size: M symbols a message. linear_symbols: size of the
    linear alphabet (0: none). label_I: (I,) int64 labels by id. held_out: True if no instance of "test" is one of
    "train"; otherwise no claims are made about unseen instances. rules: of a game with positions, which then judge it;
    None elsewhere. num_train: ids below it are training instances, the others held out; None: all instances are in both
    splits. tables: the attributes that are tensors to move to a device.
    """

    name: str
    protocol: Protocol
    num_symbols: int
    message_size: int = 1
    linear_symbols: int = 0
    label_I: Tensor
    held_out: bool = True
    rules: GameRules[Any] | None = None
    num_train: int | None = None
    tables: tuple[str, ...] = ("label_I",)

    def ids(self, split: str) -> Tensor:
        """(I,) int64 ids of the instances of "train" or "test"."""
        id_I = torch.arange(len(self.label_I), device=self.label_I.device)
        return (
            id_I if self.num_train is None else id_I[: self.num_train] if split == "train" else id_I[self.num_train :]
        )

    @abstractmethod
    def observe(self, agent: str, id_N: Tensor, said: Dialogue, round_N: Tensor, seed_N: Tensor) -> dict[str, Tensor]:
        """The observation of `agent` at the start of `round_N`: a pure function of ids, messages of earlier rounds,
        round and episode seed.

        Besides the scenario's own entries it has "round" (N,), "speaks" (N, F) and "may_decide" (N,); see `turn_masks`.
        """

    @abstractmethod
    def build_agent(self, agent: str, seed: int) -> nn.Module:
        """A fresh network for `agent`, initialised from `seed`.

        It has ``forward(obs, want_policy, want_value) -> (Policy | None, value_N | None)``, ``groups() ->
        list[ParameterGroup]`` and ``body()``, the part that the policy reads, with the weights that pretraining
        transfers.
        """

    def to(self, device: str) -> Self:
        """This scenario, its tables moved to `device` in place."""
        for name in self.tables:
            setattr(self, name, getattr(self, name).to(device))
        return self

    def legal_symbols(self, agent: str, obs: Mapping[str, Tensor]) -> Tensor | None:
        """(N, F, S) bool: the legal symbols of `agent` in the message factors in play; None: all. obs: of `observe`."""
        return obs["legal"][:, None].bool() if "legal" in obs else None

    def judge(self, id_B: Tensor, said: Dialogue, round_B: Tensor, seed_B: Tensor) -> Judgement:
        """Without verifier and `rules`: pay of round `round_B` with the moves in `said`, and the games it ends."""
        raise NotImplementedError(f"{type(self).__name__} cannot judge a game without a verifier")

    def estimate_error(self, id_B: Tensor, said: Dialogue) -> Tensor:
        """(B,) float32: the error of the estimates in these whole dialogues, if the protocol pays for it
        (`Payment.per_error`); raises NotImplementedError in a scenario without it."""
        raise NotImplementedError(f"{type(self).__name__} measures no estimates")

    def group_I(self) -> Mapping[str, Tensor]:
        """Named integer labels by id (I,), groups in evaluation, such as a Weisfeiler-Leman score or a difficulty."""
        return {}

    def situation_I(self) -> Tensor | None:
        """(I,) int64, in a game whose situations are all in its table: the situation of each instance. Greedy play of
        instances with the same number must be the same. None: instances are a sample."""
        return None

    def exact_figures(self, networks: Mapping[str, nn.Module]) -> dict[str, float]:
        """Exact metrics of the agents, where the game is small enough; runs log them as ``eval/<name>``."""
        return {}

    def figures(self, networks: Mapping[str, nn.Module]) -> dict[str, tuple[Tensor, Tensor]]:
        """Further metrics of the agents, from independent games of the scenario, seeded; logged as ``eval/<name>``.

        Name -> (numerator, denominator), each (games,): the metric is the ratio of their sums.
        """
        return {}

    def instance_content(self, id_N: Tensor) -> dict[str, Tensor] | None:
        """The content of instances, independent of agents: named tensors, a row per instance; None: use a prover's
        first observation."""
        return None

    def symbol_kinds(self, id_N: Tensor, symbol_N: Tensor) -> Tensor:
        """(N,) int64 >= 0: the kind of each main symbol on its instance, to count symbols over many instances; by
        default the symbol."""
        return symbol_N

    def instance_picture(self, id: int) -> dict[str, Any] | None:
        """A picture of an instance for readers, as plain JSON: "graphs" or an "image", in the layout of docs/report.md;
        None for none."""
        return None

    def record_extras(self, id: int, said: Dialogue, networks: Mapping[str, nn.Module]) -> dict[str, Any]:
        """Extra entries of an episode's transcript, as plain JSON. said: of this copy alone (N is 1)."""
        return {}

    def occurring(self) -> Tensor | None:
        """(I,) bool, for each of ``ids("test")`` in order: True if it is also a training instance; None if unknown."""
        return None

    def wl_bound(self, id_N: Tensor) -> float | None:
        """An upper bound, maybe loose, on the accuracy of the verifier's network alone on these instances, if one can
        be computed."""
        return None

    def solo_baseline(self, id_N: Tensor) -> tuple[int, int] | None:
        """(number judged rightly, total) of these instances by the best measured solo baseline, if there is one."""
        return None
