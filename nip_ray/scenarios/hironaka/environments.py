"""The game for one learner against a fixed opponent, as Gymnasium environments: one copy, or many as one tensor.

    import gymnasium, nip_ray.scenarios.hironaka.environments
    env = gymnasium.make("nip_ray/HironakaHost-v0", opponent="choose_first")
    envs = gymnasium.make_vec("nip_ray/HironakaAgent-v0", num_envs=1024, opponent="zeillinger", dimension=4)

The name is the learner's role. Importing this module registers both;
"nip_ray.scenarios.hironaka.environments:nip_ray/HironakaHost-v0" does so by itself. Other arguments: `illegal_reward`,
`render_mode` ("ansi"), and the game's own settings (`HironakaSettings`).

Decisions that matter here:
- a host's action is its class, an agent's the coordinate. An illegal one, which `action_mask` excludes or which is not
  an action, moves nothing, takes a round and pays `illegal_reward`; the infos count it ("illegal");
- no game starts finished; `reset(options={"points": ...})` starts with given points and refuses finished games;
- many copies restart in the step after an end, as Gymnasium's own vector environments do, from one stream of random
  numbers.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, cast, get_args, get_type_hints

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.scenarios.hironaka import rules
from nip_ray.scenarios.hironaka.game import Game, Outcome, State
from nip_ray.scenarios.hironaka.players import Player, Role, choose, scripted
from nip_ray.scenarios.hironaka.starts import open_start
from nip_ray.seeding import stable_seed
from nip_ray.settings.hironaka import ROLES, HironakaSettings

Observation = dict[str, np.ndarray[Any, Any]]
_NOT_OF_THE_GAME = ("name", "agents", "num_train", "num_test", "rho_games")


class Games:
    """Games of a learner, shared by the environments below. class_B: the host's choice if the learner is the agent."""

    def __init__(
        self, role: Role, opponent: str | Player, illegal_reward: float, settings: HironakaSettings, device: str = "cpu"
    ) -> None:
        if role not in ROLES:
            raise UserError(f"role: got {role!r}, expected {' or '.join(ROLES)}")
        self.role, self.illegal_reward, self.game = role, illegal_reward, Game(settings, device)
        self._state: State | None = None
        other = cast(Role, "agent" if role == "host" else "host")
        self.opponent = scripted(other, opponent, settings.dimension) if isinstance(opponent, str) else opponent
        self.draw = torch.Generator(device=device)
        self.actions = len(self.game.choices_KD) if role == "host" else settings.dimension

    def space(self) -> spaces.Dict:
        """The observation space of one copy."""
        settings = self.game.settings
        high = 1.0 if settings.scale_observation or settings.scale_state else rules.LARGEST
        shown: dict[str, spaces.Space[Any]] = {
            "points": spaces.Box(-1.0, high, (settings.max_points, settings.dimension), np.float32),
            "action_mask": spaces.Box(0, 1, (self.actions,), np.int8),
        }
        if self.role == "agent":
            shown["choice"] = spaces.Box(0, 1, (settings.dimension,), np.int8)
        return spaces.Dict(shown)

    @property
    def state(self) -> State:
        """The games. Raises Gymnasium's ResetNeeded before the first ones."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("reset() is to be called before anything else")
        return self._state

    def begin(self, state: State) -> None:
        """Continue from `state`."""
        self._state = state
        self._ask()

    def reset(self, random: np.random.Generator, options: dict[str, Any] | None, games: int) -> None:
        """Random starts, seeded by `random`, or ``options={"points": ...}``."""
        self.draw.manual_seed(int(random.integers(2**62)))
        given = (options or {}).get("points")
        self.begin(open_start(self.game, games, self.draw) if given is None else self.given(given, games))

    def given(self, points: Any, games: int) -> State:
        """Given starts, (m, d) for all copies or (games, m, d). Raises UserError for impossible starts."""
        try:
            points_BMD = torch.as_tensor(np.asarray(points, dtype=np.float64))
        except (TypeError, ValueError):
            raise UserError("points: expected numbers, a row of coordinates for each point") from None
        if points_BMD.dim() == 2:
            points_BMD = points_BMD.expand(games, -1, -1)
        if points_BMD.dim() == 3 and len(points_BMD) != games:
            raise UserError(f"points: got {len(points_BMD)} games, expected {games}")
        state = self.game.start(points_BMD)
        if not bool(state.open_B.all()):
            raise UserError(
                "points: a game that begins with them is over, expected at least two points of which none is below"
                " another"
            )
        return state

    def step(self, action_B: Tensor) -> tuple[Tensor, Outcome]:
        """(pay (B,), outcome) of one round with the learner's actions."""
        game, state = self.game, self.state
        if self.role == "host":
            class_B = action_B
            axis_B = choose(self.opponent, game, state, game.chosen(class_B), self.draw)
        else:
            class_B, axis_B = self.class_B, action_B
        self._state, outcome = game.step(state, class_B, axis_B)
        paid_B = outcome.host_reward_B if self.role == "host" else outcome.agent_reward_B
        self._ask()
        return torch.where(outcome.moved_B, paid_B.double(), self.illegal_reward), outcome

    def observe(self) -> Observation:
        """The observations of all copies, one per row."""
        shown = {"points": self.game.features(self.state).float()}
        if self.role == "host":
            shown["action_mask"] = torch.ones(self.state.games, self.actions, dtype=torch.int8)
        else:
            shown["choice"] = shown["action_mask"] = self.game.choices_KD[self.class_B].to(torch.int8)
        return {name: value.cpu().numpy().copy() for name, value in sorted(shown.items())}

    def _ask(self) -> None:
        if self.role == "agent":
            self.class_B = choose(self.opponent, self.game, self.state, None, self.draw)


class HironakaEnv(gymnasium.Env[Observation, np.int64]):
    """One game. role: the learner's, "host" or "agent". opponent: a player by name, or a `Player`. settings: of
    `HironakaSettings`."""

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self,
        role: Role,
        opponent: str | Player = "random",
        illegal_reward: float = -0.001,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        """Raises UserError for an unknown role, opponent or setting, or a setting out of its bounds."""
        self.games, self.render_mode = Games(role, opponent, illegal_reward, game_settings(settings)), render_mode
        self.observation_space, self.action_space = self.games.space(), spaces.Discrete(self.games.actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """A random start, or ``options={"points": ...}``."""
        super().reset(seed=seed)
        self.games.reset(self.np_random, options, 1)
        return self._shown(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One round: the learner's move and the opponent's."""
        paid_B, outcome = self.games.step(torch.tensor([int(action)], device=self.games.game.device))
        info = {"illegal": not bool(outcome.moved_B[0])}
        return self._shown(), float(paid_B[0]), bool(outcome.terminated_B[0]), bool(outcome.truncated_B[0]), info

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The points, and what the host has chosen."""
        if self.render_mode != "ansi":
            return None
        state = self.games.state
        points = [" ".join(f"{x:g}" for x in point) for point in state.points[0][rules.live(state.points)[0]].tolist()]
        chosen = ""
        if self.games.role == "agent":
            choice_D = self.games.game.choices_KD[self.games.class_B[0]]
            chosen = f"; the host chose {choice_D.nonzero().flatten().tolist()}"
        return f"round {int(state.round_B[0])}: ({'), ('.join(points)}){chosen}"

    def _shown(self) -> Observation:
        return {name: value[0] for name, value in self.games.observe().items()}


class HironakaVectorEnv(VectorEnv[Observation, Any, Any]):
    """Many games as one tensor; arguments as of `HironakaEnv`. In the step after an end
    a copy's action is ignored and a new game begins."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}

    def __init__(
        self,
        num_envs: int,
        role: Role,
        opponent: str | Player = "random",
        illegal_reward: float = -0.001,
        device: str = "cpu",
        **settings: Any,
    ) -> None:
        """Raises UserError as `HironakaEnv` does. device: where the games are."""
        settings.pop("render_mode", None)
        self.num_envs, self.games = num_envs, Games(role, opponent, illegal_reward, game_settings(settings), device)
        self.single_observation_space, self.single_action_space = (
            self.games.space(),
            spaces.Discrete(self.games.actions),
        )
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        """Random starts, or ``options={"points": ...}``. seed: a number, or several, which are combined into one for
        all copies."""
        super().reset(seed=stable_seed(len(seed), *map(int, seed)) if isinstance(seed, Sequence | np.ndarray) else seed)
        self.games.reset(self.np_random, options, self.num_envs)
        return self.games.observe(), {}

    def step(self, actions: Any) -> tuple[Observation, Any, Any, Any, dict[str, Any]]:
        """One round of all copies."""
        games = self.games
        ended_B = ~games.state.open_B
        action_B = torch.as_tensor(np.asarray(actions), dtype=torch.int64, device=games.game.device)
        paid_B, outcome = games.step(action_B)
        illegal_B = ~outcome.moved_B & ~ended_B
        if bool(ended_B.any()):
            index_K = ended_B.nonzero()[:, 0]
            games.begin(games.state.put(index_K, open_start(games.game, len(index_K), games.draw)))
        paid_B = torch.where(ended_B, 0.0, paid_B)
        paid, terminated, truncated, illegal = (
            x.cpu().numpy() for x in (paid_B, outcome.terminated_B, outcome.truncated_B, illegal_B)
        )
        return games.observe(), paid, terminated, truncated, {"illegal": illegal}


def game_settings(given: dict[str, Any]) -> HironakaSettings:
    """The game's settings with `given` ones changed. Raises UserError for an unknown one, or one out of its bounds."""
    known = {field.name: field for field in fields(HironakaSettings) if field.name not in _NOT_OF_THE_GAME}
    types = get_type_hints(HironakaSettings)
    for name, value in given.items():
        if name not in known:
            raise UserError(f"{name}: no setting of this game, expected one of {', '.join(known)}")
        default, bounds = known[name].default, known[name].metadata
        numeric = isinstance(default, int) and not isinstance(default, bool)
        low, high = bounds.get("ge", -np.inf), bounds.get("le", np.inf)
        if type(value) is not type(default) or (numeric and not low <= value <= high):
            limits = f" from {low:g} to {high:g}" if numeric else ""
            raise UserError(f"{name}: got {value!r}, expected {type(default).__name__}{limits}")
        if (words := get_args(types[name])) and value not in words:
            raise UserError(f"{name}: got {value!r}, expected one of {', '.join(words)}")
    return replace(HironakaSettings(), **given)


for _role in ROLES:
    if (_name := f"nip_ray/Hironaka{_role.capitalize()}-v0") not in gymnasium.registry:
        _one, _many = f"{__name__}:HironakaEnv", f"{__name__}:HironakaVectorEnv"
        gymnasium.register(_name, entry_point=_one, vector_entry_point=_many, kwargs={"role": _role})
