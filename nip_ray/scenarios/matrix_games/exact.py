"""Exact, differentiable values of small games: what learning rules can be tested against.

A value is what an agent wants to be large; its loss is the negative. Payoffs are (n, m) matrices [own action of agent 0, of agent 1].
"""

import torch
from torch import Tensor

PRISONERS_DILEMMA = (((-1.0, -3.0), (0.0, -2.0)), ((-1.0, 0.0), (-3.0, -2.0)))
"""Payoffs of agent 0 and agent 1; action 0 is to cooperate, 1 to defect."""


def bilinear_values(mixed0: Tensor, mixed1: Tensor, payoff0: Tensor, payoff1: Tensor) -> tuple[Tensor, Tensor]:
    """(...,) values x^T A y and x^T B y of mixed strategies x (..., n) and y (..., m) for payoffs A and B (..., n, m)."""
    joint = mixed0[..., :, None] * mixed1[..., None, :]
    return (joint * payoff0).sum((-2, -1)), (joint * payoff1).sum((-2, -1))


def bimatrix_values(logits0: Tensor, logits1: Tensor, payoff0: Tensor, payoff1: Tensor) -> tuple[Tensor, Tensor]:
    """`bilinear_values` of the mixed strategies softmax(logits0) and softmax(logits1)."""
    return bilinear_values(logits0.softmax(-1), logits1.softmax(-1), payoff0, payoff1)


def memory_one_values(
    logits0_5: Tensor, logits1_5: Tensor, payoff0: Tensor, payoff1: Tensor, gamma: float, per_step: bool = False
) -> tuple[Tensor, Tensor]:
    """(...,) discounted values of a 2 x 2 game repeated for ever by agents who recall one round; `per_step`: times 1 - gamma.

    logits (..., 5): of cooperation (action 0) at the start and after CC, CD, DC, DD, one's own action first, for each agent from its own
    point of view. gamma below 1. Solves V = p_0 (I - gamma P)^-1 r over the four joint actions, exactly (Foerster et al., "Learning with
    opponent-learning awareness", AAMAS 2018, section 5 and appendix; Letcher et al., "Stable opponent shaping in differentiable games",
    ICLR 2019).
    """
    cooperate0 = logits0_5.sigmoid()
    cooperate1 = logits1_5[..., [0, 1, 3, 2, 4]].sigmoid()  # agent 1's CD is the joint action DC
    both = torch.stack([cooperate0, 1 - cooperate0], -1)[..., :, None] * torch.stack([cooperate1, 1 - cooperate1], -1)[..., None, :]
    joint = both.flatten(-2)  # (..., 5, 4): next joint action CC, CD, DC, DD by what was before
    system = torch.eye(4, dtype=joint.dtype, device=joint.device) - gamma * joint[..., 1:, :]
    visits = torch.linalg.solve(system.mT, joint[..., 0, :])  # discounted, (..., 4)
    scale = 1 - gamma if per_step else 1.0
    return scale * (visits * payoff0.flatten(-2)).sum(-1), scale * (visits * payoff1.flatten(-2)).sum(-1)


def tandem_losses(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(...,) losses (x + y)^2 - 2 x and (x + y)^2 - 2 y: everything with x + y = 1 is a stable fixed point of both.

    Source: Letcher et al., "Stable opponent shaping in differentiable games", ICLR 2019.
    """
    together = (x + y).square()
    return together - 2 * x, together - 2 * y


def optimal_commitment(payoff_leader: Tensor, payoff_follower: Tensor) -> tuple[float, Tensor, int]:
    """(value, mixed strategy (n,), follower's action): the best the leader can commit to, ties broken in its favour.

    Payoffs (n, m): [leader's action, follower's action]. One linear programme per action j of the follower: the best mixed strategy to
    which j is a best response (strong Stackelberg equilibrium). Source: Conitzer and Sandholm, "Computing the optimal strategy to commit
    to", EC 2006, theorem 2.
    """
    from scipy.optimize import linprog

    leader, follower = payoff_leader.double().numpy(), payoff_follower.double().numpy()
    n, m = leader.shape
    best: tuple[float, Tensor, int] | None = None
    for j in range(m):
        temptation = (follower - follower[:, [j]]).T  # (m, n): what another action of the follower would gain it
        found = linprog(-leader[:, j], A_ub=temptation, b_ub=[0.0] * m, A_eq=[[1.0] * n], b_eq=[1.0], bounds=(0, 1))
        if found.success and (best is None or -found.fun > best[0]):
            best = -float(found.fun), torch.from_numpy(found.x), j
    if best is None:
        raise ArithmeticError("no linear programme could be solved: are the payoffs finite?")
    return best
