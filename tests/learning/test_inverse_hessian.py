"""Inverse-Hessian products against dense solves: on quadratics, on small networks, and where the Hessian is singular or
indefinite."""

import pytest
import torch
from torch import Tensor

from nip_ray.learning.inverse_hessian import Product, conjugate_gradient, inverse_hessian, neumann, nystrom_inverse
from nip_ray.settings.stackelberg import StackelbergSettings

SIZE = 12


def nystrom(hvp: Product, v: Tensor, rank: int, damping: float, random: torch.Generator) -> Tensor:
    return nystrom_inverse(hvp, v, rank, damping, random)(v)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def symmetric(eigenvalues: Tensor, seed: int = 0) -> Tensor:
    size = len(eigenvalues)
    turn, _ = torch.linalg.qr(torch.randn(size, size, generator=generator(seed), dtype=torch.float64))
    return turn @ torch.diag(eigenvalues.double()) @ turn.T


def vector(size: int = SIZE, seed: int = 1) -> Tensor:
    return torch.randn(size, generator=generator(seed), dtype=torch.float64)


def times(matrix: Tensor) -> Product:
    return lambda x: matrix @ x


def dense(matrix: Tensor, v: Tensor, damping: float) -> Tensor:
    return torch.linalg.solve(matrix + damping * torch.eye(len(matrix), dtype=matrix.dtype), v)


def error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("seed", range(5))
def test_quadratics(seed: int) -> None:
    matrix, v = symmetric(torch.linspace(0.1, 5, SIZE), seed), vector(seed=seed + 50)
    expected = dense(matrix, v, 0.3)
    assert error(conjugate_gradient(times(matrix), v, SIZE, 0.3), expected) < 1e-8
    assert error(neumann(times(matrix), v, 400, 0.3, 0.3), expected) < 1e-8
    assert error(nystrom(times(matrix), v, SIZE, 0.3, generator(seed)), expected) < 1e-8
    short = conjugate_gradient(times(matrix), v, 3, 0.3)
    assert 1e-3 < error(short, expected) < 1


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 1e-3)])
@pytest.mark.parametrize("rank", [3, 5, 30])
def test_nystrom_is_exact_on_a_hessian_of_low_rank(rank: int, dtype: torch.dtype, tolerance: float) -> None:
    """Also where the rows that it looks at depend on each other."""
    matrix = symmetric(torch.tensor([4.0, 2.0, 1.0] + [0.0] * 27)).to(dtype)
    v = vector(30).to(dtype)
    expected = dense(matrix.double(), v.double(), 0.1)
    for seed in range(5):
        found = nystrom(times(matrix), v, rank, 0.1, generator(seed))
        assert found.dtype == dtype
        assert error(found.double(), expected) < tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_conjugate_gradient_rests_where_it_has_converged(dtype: torch.dtype, tolerance: float) -> None:
    """Residuals that keep shrinking would underflow, and their ratio would not be a number."""
    matrix, v = torch.diag(torch.tensor([0.15, 300.0], dtype=dtype)), torch.tensor([1.0, 2.0], dtype=dtype)
    for iterations in range(2, 80):
        assert error(conjugate_gradient(times(matrix), v, iterations, 1e-9), dense(matrix, v, 1e-9)) < tolerance


@pytest.mark.parametrize("seed", range(20))
def test_conjugate_gradient_stops_at_negative_curvature(seed: int) -> None:
    """Never blows up, and never makes worse what it minimises: x (H + rho I) x / 2 - v x."""
    matrix, v = symmetric(torch.linspace(-1, 2, SIZE), seed), vector(seed=seed)
    best = 0.0
    for iterations in range(1, 30):
        x = conjugate_gradient(times(matrix), v, iterations, 0.05)
        value = float(x @ (matrix @ x + 0.05 * x) / 2 - v @ x)
        assert value <= best + 1e-9
        best = value
        assert float(x.norm()) < 10 * float(v.norm()) / 0.05
    downhill = torch.linalg.eigh(matrix).eigenvectors[:, 0]
    assert float(conjugate_gradient(times(matrix), downhill, 5, 0.05).norm()) == 0.0


def test_neumann_ends_where_it_would_diverge() -> None:
    v = vector()
    for matrix in (symmetric(torch.linspace(1, 300, SIZE)), symmetric(torch.linspace(-9, -5, SIZE))):
        assert float(neumann(times(matrix), v, 500, 0.1, 0.1).norm()) <= 5 * 0.1 * float(v.norm())


@pytest.mark.parametrize(("method", "products"), [("conjugate_gradient", 6), ("neumann", 5), ("nystrom", 4)])
def test_products_are_counted_by_the_settings_alone(method: str, products: int) -> None:
    """Learners that sum each product among themselves must make the same number of them."""
    settings = StackelbergSettings(ihvp=method, ihvp_num_iterations=6, ihvp_rank=4)  # type: ignore[arg-type]
    for eigenvalues in (torch.zeros(SIZE), torch.linspace(-5, -1, SIZE), torch.linspace(0, 90, SIZE)):
        matrix, calls = symmetric(eigenvalues), []

        def hvp(x: Tensor, matrix: Tensor = matrix, calls: list[int] = calls) -> Tensor:
            calls.append(1)
            return matrix @ x

        for v in (vector(), torch.zeros(SIZE, dtype=torch.float64)):
            calls.clear()
            inverse_hessian(settings, hvp, v, generator())(v)
            assert len(calls) == products
