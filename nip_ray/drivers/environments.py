"""Environments of many copies, and the boundaries of their episodes under Gymnasium's autoreset modes.

Decisions that matter here:
- Gymnasium's vector environments begin a new episode in the step after the last by default: that step ignores its
  action, has no reward and returns the new episode's first observation. It is marked as not a transition. If they
  restart in the same step, the last observation is taken from the infos. If they do not restart, we reset them;
- copies that Gymnasium steps one by one are seeded one by one, by their place among all copies of all learners: a
  learner's slice plays the same episodes in an environment of its own or as part of a larger one. A vector form has one
  stream for all its copies;
- legal actions may be in a Dict observation or, as in Gymnasium's own environments, in the infos; from there they are
  copied to the observations. A copy without a mask in its infos may do anything: Gymnasium fills its row with zeros,
  and marks valid rows in a second array ("_action_mask"). A copy without legal actions ends the run;
- learners that do not share an environment have one each. Nothing then passes between them, and a driver may put each
  into a process of its own, without communication per timestep.
"""

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from nip_ray.drivers.contract import MASK, arrays, ended, replaced_rows
from nip_ray.errors import TrainingError, UserError
from nip_ray.seeding import stable_seed
from nip_ray.settings.drivers import EnvironmentSettings


@dataclass(frozen=True)
class Recipe:
    """A picklable recipe for an environment, here or in another process.

    make: from a number of copies to an environment with Gymnasium's vector interface. num_copies: of all learners
    together. shared: one environment for all learners; else each has one of its own, with the copies of its scope.
    divisible: if it is shared, evaluation may still give each learner one of its own.
    """

    make: Callable[[int], Any]
    num_copies: int
    shared: bool = False
    divisible: bool = False


def recipe_of(settings: EnvironmentSettings) -> Recipe:
    """The recipe of settings."""
    return Recipe(partial(make_environment, settings), settings.num_copies, settings.shared)


def make_environment(settings: EnvironmentSettings, num_copies: int) -> gymnasium.vector.VectorEnv:
    """The environment with `num_copies` copies. Raises UserError for one that does not exist, cannot be made, or cannot
    restart as configured."""
    mode = AutoresetMode[settings.autoreset.upper()]
    kind = _vectorization(settings)
    _check_options(settings, kind)
    arguments: dict[str, Any] = {} if kind == "vector_entry_point" else {"vector_kwargs": {"autoreset_mode": mode}}
    arguments |= settings.options
    try:
        made = gymnasium.make_vec(settings.id, num_copies, vectorization_mode=kind, **arguments)
    except (gymnasium.error.Error, ImportError, TypeError, ValueError, AssertionError) as error:
        raise UserError(f"environment: {settings.id} cannot be made ({' '.join(str(error).split())[:200]})") from error
    found = made.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    if found is not mode:
        made.close()
        can = found.name.lower()
        raise UserError(
            f"environment.autoreset: got {settings.autoreset}, but {settings.id} as {kind} can only {can}; try"
            " vectorization: sync"
        )
    return made


def _vectorization(settings: EnvironmentSettings) -> str:
    module, _, name = settings.id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        spec = gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        near = difflib.get_close_matches(name, list(gymnasium.registry), 1)
        hint = f"did you mean {near[0]}?" if near else "expected one that Gymnasium knows, as CartPole-v1, or MODULE:ID"
        raise UserError(f"environment.id: got {settings.id}, {hint}") from error
    if settings.vectorization == "auto":
        if spec.vector_entry_point is None:
            return "sync"
        made = spec.vector_entry_point
        metadata = getattr(load_env_creator(made) if isinstance(made, str) else made, "metadata", {})
        restarts = metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP) is AutoresetMode[settings.autoreset.upper()]
        return "vector_entry_point" if restarts else "sync"
    if settings.vectorization == "vector_entry_point" and spec.vector_entry_point is None:
        raise UserError(
            f"environment.vectorization: {settings.id} has no vector form of its own; expected one of auto, sync, async"
        )
    return settings.vectorization


def _check_options(settings: EnvironmentSettings, kind: str) -> None:
    """Refuse an argument that the environment does not accept: a half-made environment raises again when deleted."""
    spec = gymnasium.spec(settings.id.rpartition(":")[2])
    creator = spec.vector_entry_point if kind == "vector_entry_point" else spec.entry_point
    if not settings.options or creator is None:
        return
    takes = inspect.signature(load_env_creator(creator) if isinstance(creator, str) else creator).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):
        return
    own = [name for name in takes if name not in ("self", "num_envs")]
    known = {*own, *inspect.signature(gymnasium.make).parameters, "render_mode"} - {"id", "kwargs"}
    for name in settings.options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(own)}"
            raise UserError(f"environment.options.{name}: {settings.id} takes no such argument, {hint}")


def num_copies_of(env: Any) -> int:
    """The number of copies of `env`. Raises UserError for an environment without a batch."""
    if not isinstance(getattr(env, "num_envs", None), int | np.integer):
        what = getattr(getattr(env, "spec", None), "id", None) or type(env).__name__
        raise UserError(
            f"environment: {what} is a single environment without copies (it has no num_envs), expected a vector"
            " environment, as gymnasium.make_vec makes, or EnvironmentSettings"
        )
    return int(env.num_envs)


def copies_of(env: Any, first: int = 0) -> Any:
    """`env` for drivers: `Copies` of it, or itself if it has their interface (with `placed`). first: see `Copies`."""
    num_copies_of(env)
    return env.placed(first) if hasattr(env, "placed") else Copies(env, first)


class Copies:
    """An environment of n copies in the middle of n episodes.

    env: any object with Gymnasium's vector interface; with several players its observations, rewards and ends are
    mappings of players. first: place of its first copy among all copies. observations: the current ones; if the
    environment's infos have an "action_mask", {"observation": the original, "action_mask": (n, actions) bool}. A
    tuple's parts are a mapping of "0", "1", ...
    """

    def __init__(self, env: Any, first: int = 0) -> None:
        self.env, self.first, self.num_copies = env, first, int(env.num_envs)
        metadata = getattr(env, "metadata", None) or {}
        self.mode: AutoresetMode = metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self.observations: Any = None
        self._newest: Any = None  # the environment's last observations, unchanged
        # shape of a copy's mask in the infos (None: none so far)
        self._choices: tuple[int, ...] | None = None
        self.over: np.ndarray | None = None  # (n,) bool: their next step begins an episode (None: of none)
        self._state = getattr(env, "state", None)
        self._last_state: Any = None  # before a reset within the newest step (None: none)

    def reset(self, seed: int, *purpose: str | int) -> None:
        """Begin new episodes in all copies, as a function of (seed, purpose, place of the copy)."""
        if isinstance(getattr(self.env, "unwrapped", None), SyncVectorEnv | AsyncVectorEnv):
            places = range(self.first, self.first + self.num_copies)
            seeds: Any = [stable_seed(seed, "environment", *purpose, place) % 2**31 for place in places]
        else:
            seeds = stable_seed(seed, "environment", *purpose, self.first) % 2**31
        shown, infos = self.env.reset(seed=seeds)
        self.observations, self.over = self._with_mask(_as_mappings(shown), infos), None
        self._refuse_stuck()

    def state(self) -> Any:
        """The global state, None if the environment has none."""
        return self._state() if callable(self._state) else None

    def state_led_to(self) -> Any:
        """The global state after the newest step; for copies reset in the same step, after the reset."""
        return self.state() if self._last_state is None else self._last_state

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, np.ndarray | None, Mapping[str, Any]]:
        """(next observations, rewards, terminated, truncated, valid, infos), see `Transition`; sets `observations`."""
        shown, reward, terminated, truncated, infos = self.env.step(actions)
        if shown is self._newest:
            raise TrainingError("the environment gives the same array in every step; make it with copy=True")
        self._newest = shown
        bare = _as_mappings(shown)
        shown, over = self._with_mask(bare, infos), ended(terminated, truncated)
        valid, led_to, self._last_state = None, shown, None
        if self.mode is AutoresetMode.NEXT_STEP:
            if self.over is not None:
                valid = ~self.over
            self.over = over if over.any() else None
        elif over.any():
            if self.mode is AutoresetMode.SAME_STEP:
                led_to = self._with_final(shown, over, infos)
            else:
                self._last_state = self.state()
                fresh, infos_fresh = self.env.reset(options={"reset_mask": over})
                fresh = self._with_mask(_as_mappings(fresh), infos_fresh)
                shown = fresh if self._choices is None else replaced_rows(self._with_mask(bare, infos), over, fresh)
        self.observations = shown
        self._refuse_stuck()
        return led_to, reward, terminated, truncated, valid, infos

    def snapshot(self) -> dict[str, Any]:
        """The state of the copies, in values for a checkpoint; {} if the environment has no `state_dict`."""
        own = getattr(self.env, "state_dict", None)
        return {"state": own(), "observations": self.observations, "over": self.over} if callable(own) else {}

    def restore(self, stored: Mapping[str, Any]) -> bool:
        """The inverse of `snapshot`; True if the copies are in their former episodes again.

        Checkpoints of earlier versions have a "snapshot" of an environment's attributes, which is not read.
        """
        if "state" not in stored or stored["observations"] is None:
            return False
        self.env.reset(seed=0)  # initialises what an environment makes in its first reset
        self.env.load_state_dict(stored["state"])
        self.observations, self.over = arrays(stored["observations"]), arrays(stored["over"])
        if isinstance(self.observations, Mapping) and MASK in self.observations:
            self._choices = self.observations[MASK].shape[1:]
        return True

    def render(self) -> Any:
        """A picture from the environment. Raises UserError if it cannot render."""
        try:
            return self.env.render()
        except gymnasium.error.Error as error:
            raise UserError(
                f"driver.headless: got false, but nothing can be drawn ({' '.join(str(error).split())[:200]})"
            ) from error

    def close(self) -> None:
        """End the environment."""
        self.env.close()

    def _with_mask(self, shown: Any, infos: Mapping[str, Any]) -> Any:
        """The observations, with the legal actions if infos have had any so far and the observations do not."""
        if isinstance(shown, Mapping) and MASK in shown:
            return shown
        for told in (infos, infos.get("final_info", {})):
            if self._choices is None and MASK in told:
                self._choices = next((np.shape(row) for row in told[MASK] if row is not None), None)
        return shown if self._choices is None else {"observation": shown, MASK: self._legal(infos)}

    def _legal(self, infos: Mapping[str, Any]) -> np.ndarray:
        """(n, actions) bool; all, for copies without a mask in these infos."""
        assert self._choices is not None
        all_legal = np.ones((self.num_copies, *self._choices), dtype=bool)
        if MASK not in infos:
            return all_legal
        given, present_B = infos[MASK], infos.get(f"_{MASK}")
        # masks that are lists: a row each, None for none
        if isinstance(given, np.ndarray) and given.dtype.kind == "O":
            given = [legal if row is None else row for row, legal in zip(given, all_legal, strict=True)]
        legal = np.array(given, dtype=bool)
        return legal if present_B is None else replaced_rows(all_legal, np.asarray(present_B), legal)

    def _with_final(self, shown: Any, over: np.ndarray, infos: Mapping[str, Any]) -> Any:
        """The observations of finished copies before they restarted."""
        if "final_obs" not in infos:
            raise TrainingError("the environment begins again in the same step, but its infos have no final_obs")
        final = infos["final_obs"]
        if self._choices is not None:
            final = {"observation": final, MASK: self._legal(infos.get("final_info", {}))}
        return replaced_rows(shown, over, _filled(final, shown))

    def _refuse_stuck(self) -> None:
        """Raise TrainingError if a copy that has to act has no legal action."""
        if not isinstance(self.observations, Mapping) or MASK not in self.observations:
            return
        stuck = ~np.asarray(self.observations[MASK], dtype=bool).reshape(self.num_copies, -1).any(-1)
        if self.over is not None:
            stuck &= ~self.over  # after an end none is needed
        if stuck.any():
            raise TrainingError(
                f"the environment's action_mask forbids every action of copy {self.first + int(stuck.argmax())}; "
                "expected a legal one in every step of an episode, or its end"
            )


def _as_mappings(shown: Any) -> Any:
    """Observations with tuples as mappings of "0", "1", ..., so that there is one kind of tree."""
    if isinstance(shown, tuple):
        shown = {str(place): part for place, part in enumerate(shown)}
    return {name: _as_mappings(part) for name, part in shown.items()} if isinstance(shown, Mapping) else shown


def _filled(final: Any, shown: Any) -> Any:
    """`final` as arrays like `shown`; rows of unfinished copies are arbitrary."""
    if isinstance(shown, Mapping):
        if not isinstance(final, Mapping):  # a row each, None for unfinished ones
            final = {key: [None if row is None else _as_mappings(row)[key] for row in final] for key in shown}
        return {key: _filled(final[key], part) for key, part in shown.items()}
    if isinstance(final, np.ndarray) and final.dtype != object:
        return final
    made = np.array(shown)
    for place, row in enumerate(final):
        if row is not None:
            made[place] = row
    return made
