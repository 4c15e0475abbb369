"""What every test needs, whoever starts it."""

import signal


def pytest_configure() -> None:
    # A shell's background job starts with SIGINT ignored, and programs it starts inherit that: the
    # launcher's tests, which send SIGINT, would then wait for ever. A handler is reset at exec.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
