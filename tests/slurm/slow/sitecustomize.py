"""Slow motion: a worker that finds this on its PYTHONPATH waits after each update, and between the steps of decoding.

Things can happen to a run meanwhile, on any machine; and it takes no processor, unlike the many updates that would take
as long. A file called `hurry` in the run's working directory ends it.
"""

import sys
import time
from pathlib import Path

if "ablate.worker" in sys.orig_argv:
    from ablate.stop import StopFlag

    asked = StopFlag.__call__

    def ask_later(flag: StopFlag) -> bool:
        if not Path("hurry").exists():
            time.sleep(0.5)
        return asked(flag)

    StopFlag.__call__ = ask_later  # type: ignore[method-assign]
