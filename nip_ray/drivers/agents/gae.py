"""Generalised advantage estimation over a stretch of steps of many copies, in which episodes end.

Source: Schulman et al., "High-dimensional continuous control using generalized advantage estimation", 2016, equation 16.
"""

import numpy as np


def advantages(
    reward_TB: np.ndarray,
    value_TB: np.ndarray,
    next_value_TB: np.ndarray,
    terminated_TB: np.ndarray,
    truncated_TB: np.ndarray,
    gamma: float,
    lam: float,
) -> np.ndarray:
    """(T, B) advantages: A_t = r_t + gamma v'_t - v_t + gamma lambda A_{t+1}.

    next_value_TB: of the observation that the action led to, which is not the next row's where an episode ended. A terminated step
    (bool) has no value after it; a truncated one has, and both end the sum, as the last row does.
    """
    delta_TB = reward_TB + gamma * next_value_TB * ~terminated_TB - value_TB
    carry_TB = (gamma * lam * ~(terminated_TB | truncated_TB)).astype(delta_TB.dtype)
    running_B = np.zeros_like(delta_TB[0])
    for t in range(len(delta_TB) - 1, -1, -1):
        running_B = delta_TB[t] = delta_TB[t] + carry_TB[t] * running_B
    return delta_TB
