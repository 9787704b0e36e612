"""Drills and benchmarks of the Spark package, which is a folder of this checkout."""

import sys

from load.children import CHECKOUT

sys.path.append(str(CHECKOUT / "pipeline"))
