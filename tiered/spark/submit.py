"""The file that ``spark-submit`` runs: the command `tiered`, on the master of ``spark-submit``.

    spark-submit --master yarn $(python -m tiered.spark.submit) rewrite merge orders --remote s3://bucket/logs --yes

Without arguments, and not started by ``spark-submit``, it prints its own path.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    if len(sys.argv) == 1 and "PYSPARK_GATEWAY_PORT" not in os.environ:
        sys.stdout.write(f"{os.path.abspath(__file__)}\n")
        return
    # A script's own directory comes first on the path: this one's modules would hide others of the same names.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != here]
    from tiered.__main__ import main as run_command

    run_command()


if __name__ == "__main__":
    main()
