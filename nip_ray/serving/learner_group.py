"""Ray actors that learn one model together, each from its share of a minibatch, and keep the same weights.

Decisions that matter here:
- every actor has a `PolicyModel` of the same folder and seed, so they start equal; see `nip_ray.learning.learners` for
  why they stay equal. The first provides weights and state;
- a placement group puts them on as few nodes as possible. In a trial of a sweep they are in the trial's own;
- the sampler gets the weights through the object store (`LearnerGroup.weights`), once from one of them. Here that is a
  model in the driver's process, which samples with the weights that it last took while the actors learn;
- when one fails, the others wait for it in an all-reduce: so all are ended, with the error of the one that failed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import get_current_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor, distributed

from nip_ray.cluster.liveness import ActorWatch, watchable
from nip_ray.learning.learners import Learners
from nip_ray.learning.token_losses import Surrogate, clipped_surrogate
from nip_ray.learning.token_rows import Turn
from nip_ray.serving.host import as_ours
from nip_ray.serving.policy_model import PolicyModel
from nip_ray.settings.policy_gradient import TokenTrainingSettings
from nip_ray.settings.providers import LocalProvider


class PolicyLearner:
    """One of the processes. An actor."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._store: Any = None

    def address(self) -> tuple[str, int]:
        """The address of this process, the first, for the others."""
        host = ray.util.get_node_ip_address()
        self._store = distributed.TCPStore(host, 0, self._size, is_master=True, wait_for_workers=False)
        return host, self._store.port

    def begin(self, address: tuple[str, int], folder: Path, settings: LocalProvider, seed: int) -> None:
        """Connect to the others and load the model."""
        import torch

        store = self._store or distributed.TCPStore(*address, self._size)
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, store=store, rank=self._rank, world_size=self._size)
        torch.set_num_threads(settings.threads)
        self._model = PolicyModel(folder, settings, trained=True, seed=seed, learners=Learners())

    def call(self, method: str, *arguments: Any) -> Any:
        """Call this method of its `PolicyModel`."""
        return getattr(self._model, method)(*arguments)


class LearnerGroup:
    """The driver's side: a `Policy` whose steps several actors take. Ray must run, and all nodes see the folders."""

    samples_apart = True

    def __init__(
        self,
        folder: Path,
        settings: LocalProvider,
        rule: TokenTrainingSettings,
        seed: int = 0,
        device: str | None = None,
        hang_timeout_s: float = 120.0,
    ) -> None:
        """Start them, and wait until they are ready. device: of the model that samples. hang_timeout_s: without a sign
        of life, after which one counts as lost. Raises UserError for an unusable model."""
        sampler = PolicyModel(folder, settings, trained=True, seed=seed, device=device)
        self.chat, self.sample, self.forget = sampler.chat, sampler.sample, sampler.forget
        self.logprobs, self.take, self.steps = sampler.logprobs, sampler.take, 0
        self._placed = None
        options: dict[str, Any] = {"num_cpus": settings.num_cpus, "num_gpus": settings.num_gpus}
        bundle = {name: amount for name, amount in (("CPU", settings.num_cpus), ("GPU", settings.num_gpus)) if amount}
        if bundle and get_current_placement_group() is None:
            self._placed = placement_group([bundle] * rule.num_learners, "PACK")
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._placed)
        kind: Any = watchable(PolicyLearner).options(**options)
        self._actors = [kind.remote(rank, rule.num_learners) for rank in range(rule.num_learners)]
        self._watch = ActorWatch({f"learner {rank}": actor for rank, actor in enumerate(self._actors)}, hang_timeout_s)
        address = self._results([self._actors[0].address.remote()])
        self._results([actor.begin.remote(address, folder.resolve(), settings, seed) for actor in self._actors])

    def keep_start(self, folder: Path) -> None:
        """Load the model in `folder`, the reference of KL divergences."""
        self._all("keep_start", folder.resolve())

    def step(
        self,
        turns: Sequence[Turn],
        settings: TokenTrainingSettings,
        max_tokens: int,
        surrogate: Surrogate = clipped_surrogate,
    ) -> dict[str, float]:
        """One step of all actors; see `PolicyModel.step`."""
        told = self._all("step", ray.put(list(turns)), settings, max_tokens, surrogate)
        self.steps += 1
        return told

    def supervised_step(self, turns: Sequence[Turn], settings: TokenTrainingSettings) -> dict[str, float]:
        """One step of all actors; see `PolicyModel.supervised_step`."""
        told = self._all("supervised_step", ray.put(list(turns)), settings)
        self.steps += 1
        return told

    def forget_moments(self) -> None:
        """Restart the optimizers of all actors."""
        self._all("forget_moments")

    def average(self, decay: float) -> None:
        """See `PolicyModel.average`."""
        self._all("average", decay)

    def show_averages(self, shown: bool) -> None:
        """See `PolicyModel.show_averages`."""
        self._all("show_averages", shown)

    def weights(self) -> dict[str, Tensor]:
        """See `PolicyModel.weights`."""
        return self._results([self._actors[0].call.remote("weights")])

    def state(self) -> dict[str, Any]:
        """See `PolicyModel.state`."""
        return self._results([self._actors[0].call.remote("state")])

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue all actors from it; see `PolicyModel.set_state`."""
        self._all("set_state", ray.put(state))
        self.take(state["weights"])
        self.steps = state["steps"]

    def save(self, folder: Path) -> str:
        """See `PolicyModel.save`."""
        return self._results([self._actors[0].call.remote("save", folder.resolve())])

    def close(self) -> None:
        """End the actors."""
        self._watch.close()
        for actor in self._actors:
            ray.kill(actor)
        if self._placed is not None:
            remove_placement_group(self._placed)

    def _all(self, method: str, *arguments: Any) -> Any:
        return self._results([actor.call.remote(method, *arguments) for actor in self._actors])

    def _results(self, calls: list[Any]) -> Any:
        """The first one's result, once all are done. Ends all and raises as soon as one fails."""
        waiting = calls
        try:
            while waiting:
                done, waiting = ray.wait(waiting)
                ray.get(done)
            return ray.get(calls[0])
        except RayError as error:
            self.close()
            raise as_ours(error, "a learner") from None
