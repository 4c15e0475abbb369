"""Adds workers while they pay for themselves: the provisioning policy of the KungFu paper."""

import kfcore as kf


class MarginalThroughput(kf.Policy):
    """Add a worker after each window unless the last one brought too little; then remove it.

    With T(n) the mean total throughput over the second half of a window with n workers: stop,
    and go back to n - 1, when T(n) < (1 + alpha / n) T(n - 1). Perfect scaling gives
    1 + 1 / (n - 1), so alpha = 1/3 asks for about a third of the ideal gain.

    Source: Mai et al., OSDI 2020, figure 6, as specified by the authors' artifact.
    """

    def __init__(self, window=800, limit=10, alpha=1 / 3):
        self.window, self.limit, self.alpha = window, limit, alpha
        self.since, self.rates, self.before, self.settled = 0, [], None, False

    def after_step(self, seen):
        """Judge a window when it ends."""
        self.since += 1
        rate = seen.metrics.value("throughput")
        if self.since > self.window / 2 and rate is not None:
            self.rates.append(rate)
        if self.since < self.window or self.settled:
            return None
        n, now, before = seen.world_size, sum(self.rates) / len(self.rates), self.before
        self.since, self.rates, self.before = 0, [], now
        if before is not None and now < (1 + self.alpha / n) * before:
            self.settled = True
            return kf.Resize(
                n - 1, reason=f"{n} workers bring {now:.1f}/s after {before:.1f}/s"
            )
        if n >= self.limit:
            self.settled = True
            return None
        return kf.Resize(n + 1, reason=f"{now:.1f} samples/s with {n} workers")
