"""Slow motion: a worker that finds this on its PYTHONPATH waits after each update, so that things can happen to it.

Waiting takes no processor, unlike the many more updates that would take as long, on any machine.
"""

import sys
import time

if "ablate.worker" in sys.orig_argv:
    from ablate.stop import StopFlag

    asked = StopFlag.__call__

    def ask_later(flag: StopFlag) -> bool:
        time.sleep(0.1)
        return asked(flag)

    StopFlag.__call__ = ask_later  # type: ignore[method-assign]
