"""The starts of Hironaka's game that belong to Thom polynomials: one for jets of order 3 (four coordinates) and one for
order 4 (seven).

Source: the published code's `thom_points`, after Berczi and Szenes, "Thom polynomials of Morin singularities", Annals
of Mathematics 2012. A point is a monomial, in t and b_22, b_23, ..., b_kk, of the sum of the k x k minors that belong
to the torus-fixed points of the test-curve model, the first of them counted twice. Order 5 has eleven coordinates, more
than the maximum here.
"""

from nip_ray.errors import UserError
from nip_ray.settings.hironaka import HironakaSettings

_MONOMIALS = {  # digits are exponents
    4: "3010 3001 2200 1101",
    7: "4101000 4100010 4100001 4020000 4010100 4000200 3210000 3200100 3010010 3010001 "
    "3001100 3000101 2400000 2200010 2200001 2110100 2100200 1300100 1100101",
}


def thom_points(settings: HironakaSettings) -> list[list[int]]:
    """The points of `settings.starts`, "thom" or "thom_homogeneous": with the exponent of t that makes all degrees
    equal to the largest degree in the other variables, as published. Raises UserError for settings with
    `HironakaSettings.faults`."""
    for fault in settings.faults():
        raise UserError(fault)
    points = [[int(digit) for digit in word] for word in _MONOMIALS[settings.dimension].split()]
    if settings.starts == "thom":
        return points
    degree = max(sum(rest) for _, *rest in points)
    return [[degree - sum(rest), *rest] for _, *rest in points]
