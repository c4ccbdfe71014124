"""Eight seeds of the message game at once by JaxMARL: the game as an environment of its kind, IPPO as its baselines
write it (they are not in its wheel), and `vmap` over seeds; on one core. Compiling counts for the time to the bar, not
for the speed."""

import os

os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

from typing import Any  # noqa: E402

import flax.linen as nn  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from _clock import WINDOW, Clock  # noqa: E402
from flax import struct  # noqa: E402
from jaxmarl.environments.multi_agent_env import MultiAgentEnv  # noqa: E402
from jaxmarl.environments.spaces import Box, Discrete, MultiDiscrete  # noqa: E402

SEEDS, COPIES, ROUNDS, EPOCHS, MINIBATCHES, CHUNK = 8, 512, 8, 4, 2, 5
SYMBOLS, SECRETS, CONTINUE = 20, 4, 2
GAMMA, LAMBDA, CLIP, ENTROPY, LR = 0.9, 0.95, 0.2, 0.001, 5e-3
AGENTS = ("prover", "verifier")


@struct.dataclass
class State:
    """Of one copy. said: the last message of each agent, SYMBOLS for none."""

    secret: Any
    round: Any
    said: Any


class MessageGame(MultiAgentEnv):
    """The prover sees the secret; both send a symbol in each round; the last decision of the verifier counts."""

    def __init__(self) -> None:
        super().__init__(num_agents=2)
        self.agents = list(AGENTS)
        width = ROUNDS + 2 * SYMBOLS + SECRETS
        self.observation_spaces = {agent: Box(0, 1, (width,)) for agent in AGENTS}
        self.action_spaces = {"prover": Discrete(SYMBOLS), "verifier": MultiDiscrete([SYMBOLS, 3])}

    def reset(self, key: Any) -> Any:
        """Begin an episode."""
        secret = jax.random.randint(key, (), 0, SECRETS)
        state = State(secret, jnp.zeros((), int), jnp.full(2, SYMBOLS))
        return self.get_obs(state), state

    def step_env(self, key: Any, state: State, actions: Any) -> Any:
        """A round."""
        last = state.round == ROUNDS - 1
        right = actions["verifier"][1] == (state.secret >= SECRETS // 2)
        reward = jnp.where(last, jnp.where(right, 1.0, -1.0), 0.0)
        said = jnp.stack([actions["prover"], actions["verifier"][0]])
        state = State(state.secret, state.round + 1, said)
        over = {**dict.fromkeys(AGENTS, last), "__all__": last}
        return self.get_obs(state), state, dict.fromkeys(AGENTS, reward), over, {}

    def get_obs(self, state: State) -> Any:
        """Round, last messages, and for the prover the secret."""
        messages = jax.nn.one_hot(state.said, SYMBOLS).reshape(-1)
        both = jnp.concatenate([jax.nn.one_hot(state.round, ROUNDS), messages])
        secret = jax.nn.one_hot(state.secret, SECRETS)
        return {agent: jnp.concatenate([both, secret * (agent == "prover")]) for agent in AGENTS}


class Agent(nn.Module):
    """Logits and value on one hidden layer."""

    choices: int

    @nn.compact
    def __call__(self, seen: Any) -> Any:
        """Of observations."""
        hidden = jnp.tanh(nn.Dense(64)(seen))
        return nn.Dense(self.choices)(hidden), nn.Dense(1)(hidden)[..., 0]


nets = {"prover": Agent(SYMBOLS), "verifier": Agent(SYMBOLS + 3)}
rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(LR))
env = MessageGame()


def parts(logits: Any, seen: Any) -> list[Any]:
    """Log-probabilities by factor; the decision is `continue` before the last round."""
    message, decision = logits[..., :SYMBOLS], logits[..., SYMBOLS:]
    if not decision.shape[-1]:
        return [jax.nn.log_softmax(message)]
    last = seen[..., ROUNDS - 1, None] > 0
    forced = jnp.where(jnp.arange(3) == CONTINUE, 0.0, -1e8)
    return [jax.nn.log_softmax(message), jax.nn.log_softmax(jnp.where(last, decision, forced))]


def taken(found: list[Any], action: Any) -> Any:
    """The log-probability of an action."""
    return sum(jnp.take_along_axis(one, action[..., f, None], -1)[..., 0] for f, one in enumerate(found))


def loss_of(params: Any, name: str, batch: Any) -> Any:
    """PPO's."""
    logits, value = nets[name].apply(params, batch["seen"])
    found = parts(logits, batch["seen"])
    ratio = jnp.exp(taken(found, batch["action"]) - batch["old"])
    advantage = batch["advantage"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()
    entropy = -sum((jnp.exp(one) * one).sum(-1) for one in found).mean()
    return optax.huber_loss(value, batch["target"]).mean() - gain - ENTROPY * entropy


def update(carry: Any, _: Any) -> Any:
    """Play an episode in every copy, and learn from it."""
    params, moments, key = carry
    key, begin, play = jax.random.split(key, 3)
    seen, state = jax.vmap(env.reset)(jax.random.split(begin, COPIES))

    def round_(carry: Any, key: Any) -> Any:
        seen, state = carry
        actions, row = {}, {}
        for name, draw in zip(AGENTS, jax.random.split(key)):
            logits, value = nets[name].apply(params[name], seen[name])
            found = parts(logits, seen[name])
            draws = jax.random.split(draw, len(found))
            action = jnp.stack([jax.random.categorical(k, one) for k, one in zip(draws, found)], -1)
            row[name] = {"seen": seen[name], "action": action, "old": taken(found, action), "value": value}
            actions[name] = action if name == "verifier" else action[..., 0]
        keys = jax.random.split(key, COPIES)
        seen, state, reward, _, _ = jax.vmap(env.step_env)(keys, state, actions)
        return (seen, state), {name: {**row[name], "reward": reward[name]} for name in AGENTS}

    _, played = jax.lax.scan(round_, (seen, state), jax.random.split(play, ROUNDS))
    for name in AGENTS:
        key, shuffle = jax.random.split(key)
        weights, own = learned(name, params[name], moments[name], played[name], shuffle)
        params, moments = {**params, name: weights}, {**moments, name: own}
    return (params, moments, key), played["verifier"]["reward"].sum(0).mean()


def learned(name: str, weights: Any, moments: Any, played: Any, key: Any) -> Any:
    """Advantages, and PPO's epochs."""

    def back(carry: Any, row: Any) -> Any:
        later, following = carry
        later = row["reward"] + GAMMA * following - row["value"] + GAMMA * LAMBDA * later
        return (later, row["value"]), later

    nothing, rows = jnp.zeros(COPIES), {part: played[part] for part in ("reward", "value")}
    _, advantage = jax.lax.scan(back, (nothing, nothing), rows, reverse=True)
    data = {**played, "advantage": advantage, "target": advantage + played["value"]}
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), data)

    def step(carry: Any, part: Any) -> Any:
        weights, moments = carry
        gradient = jax.grad(loss_of)(weights, name, jax.tree.map(lambda x: x[part], flat))
        change, moments = rule.update(gradient, moments)
        return (optax.apply_updates(weights, change), moments), None

    def epoch(carry: Any, key: Any) -> Any:
        order = jax.random.permutation(key, COPIES * ROUNDS).reshape(MINIBATCHES, -1)
        return jax.lax.scan(step, carry, order)[0], None

    return jax.lax.scan(epoch, (weights, moments), jax.random.split(key, EPOCHS))[0]


def begun(key: Any) -> Any:
    """Fresh networks."""
    keys = jax.random.split(key, 3)
    empty = jnp.zeros(ROUNDS + 2 * SYMBOLS + SECRETS)
    params = {name: nets[name].init(own, empty) for name, own in zip(AGENTS, keys)}
    return params, {name: rule.init(params[name]) for name in AGENTS}, keys[2]


clock = Clock("jaxmarl", "jax", "flax")
carry = jax.vmap(begun)(jax.random.split(jax.random.PRNGKey(clock.seed), SEEDS))
train = jax.jit(jax.vmap(lambda carry: jax.lax.scan(update, carry, None, CHUNK)))
clock.start()
while True:
    carry, returns = train(carry)
    worst = float(returns[:, -1].min())  # of the seeds
    if not clock.goes_on(SEEDS * COPIES * ROUNDS * CHUNK, [worst] * WINDOW):
        break
clock.show()
