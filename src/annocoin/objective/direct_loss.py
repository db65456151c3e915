"""Direct loss minimisation: the gradient of an expected loss through an argmax (appendix B).

With y_c = argmax S(y) and y_a = argmax S(y) + epsilon Delta(y), the gradient of the expected loss
is the limit of (grad S(y_a) - grad S(y_c)) / epsilon for epsilon -> 0, from above or from below.
The labellings are constants. Only the gradients of the returned scalars have a meaning.
"""

from __future__ import annotations

from torch import Tensor

from annocoin.errors import InputError
from annocoin.objective.diversity import GAMMA


def direct_loss(augmented: Tensor, plain: Tensor, epsilon: float) -> Tensor:
    """A scalar with the gradient of the expected loss.

    Args:
        augmented: S(y_a), the scores of loss-augmented inference, of any shape.
        plain: S(y_c), the scores of plain inference, of the same shape.
        epsilon: the factor of the loss in y_a, positive or negative.
    """
    if epsilon == 0:
        raise InputError("epsilon 0; expected a positive or negative number, such as 1 or -1")
    return (augmented - plain).mean() / epsilon


def conditional_surrogate(
    plain: Tensor,
    prediction_augmented: Tensor,
    sample_augmented: Tensor | None,
    *,
    epsilon: float,
    gamma: float = GAMMA,
) -> Tensor:
    """A scalar with the gradient of DIV(Pr_p, Pr_c) - gamma DIV(Pr_c, Pr_c).

    Both arguments of DIV(Pr_c, Pr_c) depend on the network. As Delta is symmetric, its gradient has
    a factor of 2, as in the paper's 2 / K(K-1).

    Args:
        plain: S^k(y_c^k), [K].
        prediction_augmented: S^k(y_a^k), with the loss under the prediction network, [K].
        sample_augmented: S^k(y_b^{k,k'}), with the loss between samples k and k', [K, K-1]; None
            omits the self diversity, as the pointwise network PW_c does.
    """
    surrogate = direct_loss(prediction_augmented, plain, epsilon)
    if sample_augmented is None or sample_augmented.numel() == 0:
        return surrogate
    expanded = plain[:, None].expand_as(sample_augmented)
    return surrogate - 2 * gamma * direct_loss(sample_augmented, expanded, epsilon)
