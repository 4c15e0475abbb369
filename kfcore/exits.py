"""Exit codes with a meaning beyond success and failure."""

__all__ = ["EXIT_EXPELLED", "EXIT_PREEMPTED"]

# EX_TEMPFAIL of sysexits.h: "try again later". A worker that was told to leave saved its state.
EXIT_PREEMPTED = 75

# A worker that was silent for too long finds that the others went on without it.
EXIT_EXPELLED = 76
