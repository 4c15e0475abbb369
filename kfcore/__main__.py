"""``python -m kfcore`` is ``kf``."""

from kfcore.cli import main

main()
