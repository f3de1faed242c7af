"""How long to wait before something that has failed is tried again."""

import random
from dataclasses import dataclass

_MOST_DOUBLINGS = 10


@dataclass(frozen=True)
class Backoff:
    """Delays that double from ``first_s`` to ``longest_s``, each cut by up to a half at random."""

    first_s: float
    longest_s: float
    rng: random.Random

    def delay_s(self, failures: int) -> float:
        """The delay after so many failures in a row; none after none."""
        if not failures:
            return 0.0
        doublings = min(failures - 1, _MOST_DOUBLINGS)
        longest_s = min(self.longest_s, self.first_s * 2**doublings)
        return self.rng.uniform(longest_s / 2, longest_s)
