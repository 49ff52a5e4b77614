"""What computes the products of an attention operator: the interface that every backend has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar


class Products(ABC):
    """Products of ``A = softmax(q k')`` behind a mask, and of its transpose; A is never formed.

    Attributes
    ----------
    name : str
        What ``backend`` of an operator calls it.
    one_pass : bool
        Whether :meth:`sweep` computes the scores once, and not twice.
    log_normaliser : array of shape (..., queries), optional
        ``log sum exp`` of the scores of each row; None where a kernel keeps it to itself.
    """

    name: ClassVar[str]
    one_pass: ClassVar[bool] = False
    log_normaliser: Any

    @abstractmethod
    def forward(self, block: Any) -> Any:
        """``A V``."""

    @abstractmethod
    def backward(self, block: Any) -> Any:
        """``A' U``."""

    def sweep(self, block: Any, less: Any = None) -> tuple[Any, Any]:
        """``W = A V - L``, and ``A' W``: by two products, where a backend does not know better."""
        image = self.forward(block) if less is None else self.forward(block) - less
        return image, self.backward(image)
