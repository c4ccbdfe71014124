"""Products with the inverse of a damped Hessian, (H + rho I)^-1 v, from Hessian-vector products alone.

Decisions that matter here:
- vectors are flat, (P,), and H is symmetric; no method holds P x P numbers, and the number of calls of `hvp` depends on
  arguments alone, never on values: learners that sum every product stay in step, and nothing waits for a GPU;
- the Hessian of a sampled policy-gradient loss may be indefinite. A direction counts as curved if H + rho I bends it up
  by at least a tenth of rho; each method documents its treatment of other directions. So no result exceeds 10 |v| / rho
  in size, except that of Neumann's series, which is bounded by terms * scale * |v|.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from nip_ray.settings.stackelberg import StackelbergSettings

# share of the damping; the published library adds as much to the matrix that its Nystrom method inverts
_LEAST_CURVATURE = 0.1

Product = Callable[[Tensor], Tensor]


def conjugate_gradient(hvp: Product, v: Tensor, iterations: int, damping: float) -> Tensor:
    """(P,): approximately (H + rho I)^-1 v after `iterations` products.

    Source: Hestenes and Stiefel, "Methods of conjugate gradients for solving linear systems", 1952, section 3. Exact
    after as many iterations as H has different eigenvalues. At the first direction that is not curved upwards it stops,
    like truncated Newton methods (Steihaug, 1983), and returns the best so far, which is 0 if that direction is v
    itself; later products are computed and ignored.
    """
    x, r, p = torch.zeros_like(v), v, v
    size = r @ r
    negligible = size * torch.finfo(v.dtype).eps ** 2  # below it there is only rounding, which would end in 0 / 0
    alive = size > 0
    for _ in range(iterations):
        bent = hvp(p) + damping * p
        curvature = p @ bent
        alive = alive & (size > negligible) & (curvature > _LEAST_CURVATURE * damping * (p @ p))
        step = torch.where(alive, size / curvature, 0.0)
        x = x + step * p
        r = r - step * bent
        old, size = size, r @ r
        p = r + torch.where(alive, size / old, 0.0) * p
    return x


def neumann(hvp: Product, v: Tensor, terms: int, damping: float, scale: float) -> Tensor:
    """(P,): scale * sum over j < terms of (I - scale (H + rho I))^j v, with terms - 1 products.

    Source: Lorraine, Vicol and Duvenaud, "Optimizing millions of hyperparameters by implicit differentiation", AISTATS
    2020, algorithm 3. It converges if every eigenvalue of H + rho I lies between 0 and 2 / scale; then each term is
    smaller than the one before. A larger term shows that the series would diverge: the sum ends before it, and later
    products are computed and ignored.
    """
    term, total = v, v
    alive = torch.ones((), dtype=torch.bool, device=v.device)
    for _ in range(terms - 1):
        following = term - scale * (hvp(term) + damping * term)
        alive = alive & (following.norm() <= term.norm())
        term = torch.where(alive, following, 0.0)
        total = total + term
    return scale * total


def nystrom_inverse(hvp: Product, like: Tensor, rank: int, damping: float, generator: torch.Generator) -> Product:
    """v -> (H_k + rho I)^-1 v with H_k = C^T W^+ C: C (k, P) are k random rows of H, W (k, k) is where they cross the
    same columns.

    like: any vector of H's size, type and device. Takes min(rank, P) products, and none for each v. Exact if H has at
    most that rank, except for the rare choice of rows that does not span it.

    Source: Hataya and Yamada, "Nystrom method for accurate and scalable implicit differentiation", AISTATS 2023, who
    apply Woodbury's identity: v / rho - C^T (W + C C^T / rho)^-1 C v / rho^2. That matrix is singular where C has
    dependent rows (the published library adds 0.1 rho I to it, which biases every result), so the same H_k is brought
    to its eigenvalues here: W = U L U^T, B = |L|^-1/2 U^T C over the eigenvalues that are not rounding errors,
    H_k = B^T sign(L) B, and a QR decomposition of B^T. Directions of H_k that are not curved upwards count by the size
    of their eigenvalue, as in Dauphin et al., "Identifying and attacking the saddle point problem in high-dimensional
    non-convex optimization", NeurIPS 2014. All but the products is computed in double precision: along curved
    directions most of v / rho cancels. If a product is not finite, the result is NaN; nothing is raised.
    """
    chosen_K = torch.randperm(like.numel(), generator=generator, device=generator.device)[:rank].to(like.device)
    if not len(chosen_K):
        return lambda v: v / damping
    rows_KP = torch.stack([hvp(torch.zeros_like(like).index_fill_(0, index, 1.0)) for index in chosen_K])
    poison = 0.0 * rows_KP.sum()  # 0, or NaN, for which the decompositions below would raise
    rows_KP = torch.nan_to_num(rows_KP, posinf=0.0, neginf=0.0).double()
    cross_KK = rows_KP[:, chosen_K]
    values_K, vectors_KK = torch.linalg.eigh((cross_KK + cross_KK.T) / 2)
    sizes_K = values_K.abs()
    rounding = 10 * len(chosen_K) * torch.finfo(like.dtype).eps * sizes_K.max()
    roots_K = torch.where(sizes_K > rounding, sizes_K.rsqrt(), 0.0)
    basis_PK, corner_KK = torch.linalg.qr((roots_K[:, None] * (vectors_KK.T @ rows_KP)).T)
    eigenvalues_K, turn_KK = torch.linalg.eigh((corner_KK * values_K.sign()) @ corner_KK.T)
    directions_PK = basis_PK @ turn_KK
    damped_K = eigenvalues_K + damping
    curvature_K = torch.where(damped_K > _LEAST_CURVATURE * damping, damped_K, eigenvalues_K.abs() + damping)

    def inverse(v: Tensor) -> Tensor:
        coefficient_K = (1 / curvature_K - 1 / damping) * (directions_PK.T @ v.double())
        return (v.double() / damping + directions_PK @ coefficient_K).to(v.dtype) + poison

    return inverse


def inverse_hessian(settings: StackelbergSettings, hvp: Product, like: Tensor, generator: torch.Generator) -> Product:
    """v -> (H + rho I)^-1 v by the method of `settings.ihvp`; everything independent of v is computed once.

    like: any vector of H's size, type and device. Only nystrom reads the generator, which must be in the same state on
    every learner.
    """
    damping = settings.ihvp_damping
    if settings.ihvp == "nystrom":
        return nystrom_inverse(hvp, like, settings.ihvp_rank, damping, generator)
    if settings.ihvp == "neumann":
        return lambda v: neumann(hvp, v, settings.ihvp_num_iterations, damping, settings.ihvp_neumann_scale)
    return lambda v: conjugate_gradient(hvp, v, settings.ihvp_num_iterations, damping)
