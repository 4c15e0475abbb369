"""What every test needs, whoever starts it."""

import signal


def pytest_configure() -> None:
    # A background job of a shell starts with SIGINT ignored, and so do programs that it starts:
    # the launcher's tests, which send SIGINT, would wait for ever. A handler is reset at exec.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
