"""Loss terms beyond those of sampled actions, and the turns averaged over by the latter; for PPO and REINFORCE.

The formulas are in `nip_ray.learning.verdicts`.
"""

from torch import Tensor

from nip_ray.learning.policy import LogPolicy, Policy
from nip_ray.learning.verdicts import expected_objective, imitation, label_loss, stakes, taught_turns
from nip_ray.play.rollout import AgentRows
from nip_ray.rllib.learner import AgentData, Loss, scale_of


def imitation_loss(policy: Policy, rows: AgentRows, own: Tensor, all_rows: Tensor) -> Loss:
    """The whole loss of an agent whose turns `own` of a minibatch all come from a search."""
    loss = imitated(policy.normalised(), rows, own, all_rows)
    return Loss(loss, {"imitation": loss})


def imitated(log_policy: LogPolicy, rows: AgentRows, own: Tensor, all_rows: Tensor) -> Tensor:
    """The divergence from a search's results, mean over the turns `own`, each weighted by its stake over the
    minibatch's mean stake."""
    assert rows.taught_NFS is not None
    taught_KFS, stake_K = rows.taught_NFS[own], stakes(rows.taught_NFS[all_rows])
    mean_stake = stake_K.sum() / (stake_K > 0).sum().clamp_min(1)
    return (stakes(taught_KFS) * imitation(log_policy, taught_KFS)).mean() / mean_stake.clamp_min(1e-30)


def weights_of(data: AgentData, own: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """((K,) 1 for turns played by the agent's network, 0 for those from a search; (K,) the same, with 0 also for turns
    whose expected pay is known). None: all are 1."""
    drawn_K = None if data.rows.taught_NFS is None else ~taught_turns(data.rows.taught_NFS[own])
    sampled_K = drawn_K
    if data.verdicts is not None:
        unsettled_K = ~data.verdicts.rows(own).settled_N
        sampled_K = unsettled_K if drawn_K is None else drawn_K & unsettled_K
    to = data.advantage_N.dtype
    return None if drawn_K is None else drawn_K.to(to), None if sampled_K is None else sampled_K.to(to)


def further_terms(
    policy: Policy,
    log_policy: LogPolicy,
    data: AgentData,
    own: Tensor,
    all_rows: Tensor,
    normalize: bool,
    clip: float | None,
) -> dict[str, Tensor]:
    """Additional loss terms over the turns `own`, by name: none, "verdict" or "imitation".

    all_rows, normalize: advantages are scaled by mean and deviation over these turns, if at all. clip: of probability
    ratios (None: none).
    """
    found = {}
    if data.verdicts is not None:
        known = data.verdicts.rows(own)
        middle, deviation = scale_of(data, all_rows) if normalize else (0.0, 1.0)
        advantage_KD = (known.pay_ND - data.value_N[own][:, None] - middle) / deviation
        found["verdict"] = expected_objective(log_policy, known, advantage_KD, clip).mean()
    if data.y_N is not None and policy.may_decide is not None:
        # of the whole minibatch, on all learners
        deciding = data.rows.obs["may_decide"][all_rows].to(data.advantage_N.dtype).mean()
        found["verdict"] = label_loss(policy, data.y_N[own]).mean() / deciding.clamp_min(1 / len(all_rows))
    if data.rows.taught_NFS is not None:
        found["imitation"] = imitated(log_policy, data.rows, own, all_rows)
    return found
