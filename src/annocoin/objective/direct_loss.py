"""Direct loss minimisation: gradients of an expected loss through the argmax of a score.

For y_c = argmax S(y) and y_a = argmax S(y) + eps Delta(y), the gradient of the expected loss is the
limit, for small eps, of (grad S(y_a) - grad S(y_c)) / eps. A negative eps is the other way to take
the same limit. Labels are constants: the surrogate's value means nothing, its gradient does.
"""

from __future__ import annotations

from torch import Tensor

from annocoin.errors import InputError
from annocoin.objective.diversity import GAMMA


def direct_loss(augmented: Tensor, plain: Tensor, epsilon: float) -> Tensor:
    """Whose gradient is that of the mean expected loss, a number.

    Args:
        augmented: S(y_a), any shape.
        plain: S(y_c), the same shape.
        epsilon: with which y_a was found; of either sign.
    """
    if epsilon == 0:
        raise InputError("epsilon 0; expected another number, such as 1 or -1")
    return (augmented - plain).mean() / epsilon


def conditional_surrogate(
    plain: Tensor,
    against_prediction: Tensor,
    against_samples: Tensor | None,
    *,
    epsilon: float,
    gamma: float = GAMMA,
) -> Tensor:
    """Whose gradient estimates that of DIV(Pr_p, Pr_c) - gamma DIV(Pr_c, Pr_c), a number.

    Both arguments of DIV(Pr_c, Pr_c) are samples of the network that learns; as Delta is symmetric,
    that gives its gradient a factor of 2 (the 2 / K(K-1) of the paper's algorithm).

    Args:
        plain: S^k(y_c^k), [K].
        against_prediction: S^k(y_a^k), [K].
        against_samples: S^k(y_b^{k,k'}), [K, K-1], where y_b has Delta to sample k' added; None
            leaves the self diversity out, as PW_c does.
    """
    surrogate = direct_loss(against_prediction, plain, epsilon)
    if against_samples is None or against_samples.numel() == 0:
        return surrogate
    expanded = plain[:, None].expand_as(against_samples)
    return surrogate - 2 * gamma * direct_loss(against_samples, expanded, epsilon)
