"""``python -m kfsim scenario.toml``: the same as ``kf sim``."""

import sys

from kfcore.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "sim")
    main()
