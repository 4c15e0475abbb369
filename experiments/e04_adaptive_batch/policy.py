"""What e04 needs beside the built-in policy: a warm-up and an end."""

import kfcore as kf


class LinearWarmup(kf.Policy):
    """Raise the learning rate in a straight line from ``start`` to ``peak`` over some steps.

    Source: Goyal et al., "Accurate, large minibatch SGD", 2017 (gradual warm-up).
    """

    def __init__(self, start, peak, steps):
        self.start, self.peak, self.steps = start, peak, steps

    def after_step(self, seen):
        """The rate of the next step."""
        if seen.step > self.steps:
            return None
        rate = self.start + (self.peak - self.start) * min(1, seen.step / self.steps)
        return kf.SetLearningRate(rate, reason="warm-up")


class StopAfter(kf.Policy):
    """End training after some passes over the data."""

    def __init__(self, epochs):
        self.epochs = epochs

    def after_epoch(self, seen):
        """Count."""
        return kf.Stop() if seen.epoch >= self.epochs else None


class StopAtProgress(kf.Policy):
    """End training when the steps' worth adds up to 1.

    ``worth`` maps a global batch to what one step of it is worth, (0, 1].
    """

    def __init__(self, worth):
        self.worth, self.done = worth, 0.0

    def after_step(self, seen):
        """Add the step, by the batch in force from now on: one step early at a change."""
        self.done += self.worth(seen.global_batch)
        return kf.Stop() if self.done >= 1 else None
