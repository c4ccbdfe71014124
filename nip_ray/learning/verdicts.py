"""Learning signals in addition to sampled actions: all decisions of a turn, and all messages that a search tried.

Sources: the gradient of the expected pay, summed over decisions: Ciosek and Whiteson, "Expected policy gradients",
2018, equation 4, here under PPO's clipped ratio (Schulman et al. 2017, equation 7). A verifier that learns by the log
score of the label: Anil et al., "Learning to give checkable answers with prover-verifier games", 2021; Kirchner et al.,
"Prover-verifier games improve legibility of LLM outputs", 2024. Imitation of a search: Anthony, Tian and Barber,
"Thinking fast and slow with deep learning and tree search", 2017, equation 3.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nip_ray.learning.policy import LogPolicy, Policy


@dataclass(frozen=True)
class Verdicts:
    """The known values of D decisions in N turns.

    pay_ND: the immediate pay of each, NaN if unknown. log_prob_ND: log-probabilities before the update. drawn_N: (N,)
    int64, the sampled decision.
    """

    pay_ND: Tensor
    log_prob_ND: Tensor
    drawn_N: Tensor

    def rows(self, row_K: Tensor) -> "Verdicts":
        """Some turns."""
        return Verdicts(self.pay_ND[row_K], self.log_prob_ND[row_K], self.drawn_N[row_K])

    @property
    def settled_N(self) -> Tensor:
        """(N,) bool: the pay of the sampled decision is known, so the expected pay is the whole signal."""
        return ~self.pay_ND.gather(1, self.drawn_N[:, None]).squeeze(1).isnan()

    def expected_pay(self, drawn_N: Tensor) -> Tensor:
        """(N,) the expected pay of turns in which that of every decision is known, for earlier turns to learn from;
        `drawn_N` elsewhere."""
        known_N = ~self.pay_ND.isnan().any(1)
        return torch.where(known_N, (self.log_prob_ND.exp() * self.pay_ND.nan_to_num()).sum(1), drawn_N)


def expected_objective(
    log_policy: LogPolicy, known: Verdicts, advantage_ND: Tensor, clip_epsilon: float | None
) -> Tensor:
    """(N,) minus the expected advantage of decisions with known pay, whose gradient is minus that of the expected pay:

    -sum_d pi(d) A(d), or with `clip_epsilon` -sum_d pi_old(d) min(rho(d) A(d), clip(rho(d), 1 - eps, 1 + eps) A(d)).
    Other decisions are left to the turn's sampled objective. advantage_ND: read where the pay is known.
    """
    assert log_policy.decision is not None
    known_ND = ~known.pay_ND.isnan()
    advantage_ND = torch.where(known_ND, advantage_ND, 0.0)
    if clip_epsilon is None:
        return -(log_policy.decision.exp() * advantage_ND).sum(1)
    ratio_ND = (log_policy.decision - known.log_prob_ND).clamp(-20.0, 20.0).exp()
    clipped_ND = ratio_ND.clamp(1 - clip_epsilon, 1 + clip_epsilon)
    return -(known.log_prob_ND.exp() * torch.minimum(ratio_ND * advantage_ND, clipped_ND * advantage_ND)).sum(1)


def label_loss(policy: Policy, y_N: Tensor) -> Tensor:
    """(N,) cross-entropy of the label `y_N` (N,) int64 and the verdict, given that there is one; 0 if none counts."""
    assert policy.decision is not None
    assert policy.may_decide is not None
    loss_N = torch.nn.functional.cross_entropy(policy.decision[:, :-1], y_N, reduction="none")
    return loss_N * policy.may_decide


def imitation(log_policy: LogPolicy, taught_NFS: Tensor) -> Tensor:
    """(N,) KL(search || policy), summed over F message factors; 0 where nothing is taught. taught_NFS: scaled by the
    turn's stake."""
    chance_NFS = taught_NFS / taught_NFS.sum(2, keepdim=True).clamp_min(1e-30)
    difference_NFS = torch.where(taught_NFS > 0, chance_NFS.clamp_min(1e-30).log() - log_policy.message, 0.0)
    return (chance_NFS * difference_NFS).sum((1, 2))


def stakes(taught_NFS: Tensor) -> Tensor:
    """(N,) the pay of the best message tried less the mean; 0 where nothing is taught.

    A turn in which every message pays the same has no weight: cost-sensitive imitation, Ross and Bagnell,
    "Reinforcement and imitation learning via interactive no-regret learning", 2014, section 3.
    """
    return taught_NFS.sum(2).amax(1)


def taught_turns(taught_NFS: Tensor) -> Tensor:
    """(N,) bool: the turns in which something is taught."""
    return stakes(taught_NFS) > 0
