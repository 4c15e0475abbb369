"""Real gradients in simulated time: examples/digits.py, measured after each pass."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from kfcore.errors import UsageError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits.py"


def recorded_digits(seed: int) -> Any:
    """A `kfcore.task.Task` that keeps (steps, accuracy, loss) after each pass in ``history``.

    Args:
        seed: of weights and split.

    Returns:
        The task.

    Raises:
        UsageError: there is no examples folder (an installed package).
    """
    if not EXAMPLE.is_file():
        raise UsageError(
            f"this experiment needs examples/{EXAMPLE.name}: run it from a source tree"
        )
    if "_kf_digits" not in sys.modules:
        spec = importlib.util.spec_from_file_location("_kf_digits", EXAMPLE)
        assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - the file is there
        sys.modules["_kf_digits"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["_kf_digits"])
    base = sys.modules["_kf_digits"].Digits

    class Recorded(base):  # type: ignore[misc, valid-type]
        """Counts samples; one replica stands for all workers, so their sum is a pass."""

        def __init__(self) -> None:
            super().__init__(seed=seed)
            self.history: list[tuple[int, float, float]] = []
            self._steps = self._samples = 0

        def gradients(self, indices: Any) -> Any:
            self._samples += len(indices)
            return super().gradients(indices)

        def apply(self, learning_rate: float) -> None:
            super().apply(learning_rate)
            self._steps += 1
            if self._samples >= self.n_samples:
                self._samples = 0
                found = self.evaluate()
                self.history.append((self._steps, found["accuracy"], found["loss"]))

    return Recorded()
