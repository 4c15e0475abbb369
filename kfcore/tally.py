"""What a job's steps took, and how much of it measuring, agreeing and deciding."""

import math

__all__ = ["Tally"]


class Tally:
    """Times of one rank's steps, added up. Own time of the process, not agreed with others.

    Attributes:
        steps: Steps counted.
        step_s: Seconds from the end of a step to the end of the next, of all steps together.
        comm_s: Of that, in the all-reduce, with the norms that are summed inside it.
        job_s: Of that, the job's own: norms beside the all-reduce, control block, agreement,
            monitors and policies.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.step_s = self.comm_s = self.job_s = 0.0

    def add(self, step_s: float, comm_s: float, job_s: float) -> None:
        """Count a step.

        Args:
            step_s: As the attributes, of this step.
            comm_s: Likewise.
            job_s: Likewise.
        """
        self.steps += 1
        self.step_s += step_s
        self.comm_s += comm_s
        self.job_s += job_s

    def summary(self) -> dict[str, float]:
        """Means of a step, and the share of the job's own time.

        Returns:
            ``steps``; ``step_ms``, ``comm_ms``, ``job_ms``: means, milliseconds; and
            ``overhead_percent``: the job's own time over all time. NaN before the first step.
        """

        def mean(total_s: float) -> float:
            return 1e3 * total_s / self.steps if self.steps else math.nan

        overhead = 100 * self.job_s / self.step_s if self.step_s > 0 else math.nan
        return {
            "steps": self.steps,
            "step_ms": mean(self.step_s),
            "comm_ms": mean(self.comm_s),
            "job_ms": mean(self.job_s),
            "overhead_percent": overhead,
        }
