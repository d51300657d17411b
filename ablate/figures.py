"""The figures of a sweep as files.

`python -m ablate.figures [SWEEP …] [--preset smoke] [--out figures] [--format svg,png,pdf] [SETTING=VALUE …]`
"""

import sys
from pathlib import Path

from ablate import table
from ablate.ask import plan_of, reader
from ablate.errors import ConfigError, nearest
from ablate.history import histories
from ablate.refuse import brought_by, refuses

with brought_by("analysis"):
    from ablate.draw import forest, learning_curves, rates, save, settings

FORMATS = ("svg", "png", "pdf")
# Of each row what came out, and of each run how it went.
OF_ROWS = {
    "forest": ("Table 3 at preset {}: difference to base", forest),
    "settings": ("What each block varies, at preset {}", settings),
}
OF_LINES = {
    "curves": ("Learning curves at preset {}", learning_curves),
    "rates": ("Learning rate and throughput at preset {}", rates),
}


def formats(text: str) -> list[str]:
    """Split "svg,pdf" at its commas.

    Raises:
        ConfigError: for a format there is not.
    """
    for name in text.split(","):
        if name not in FORMATS:
            raise ConfigError("--format", name, nearest(name, list(FORMATS)))
    return text.split(",")


@refuses(ValueError)
def main(argv: list[str] | None = None) -> int:
    """Write the figures of a sweep from the records and logs there are; returns the exit code."""
    parser = reader("figures", f"Write the figures of a sweep: {', '.join([*OF_ROWS, *OF_LINES])}.")
    parser.add_argument("--format", default="svg", help=f"one or more of {','.join(FORMATS)} (default: svg)")
    parser.add_argument("--out", type=Path, default=Path("figures"), help="the folder to write to (default: figures)")
    arguments = parser.parse_intermixed_args(argv)
    suffixes = formats(arguments.format)
    plan = plan_of(arguments)
    for figures, frame in ((OF_ROWS, table.build(plan).frame), (OF_LINES, histories(plan))):
        for name, (title, draw) in figures.items():
            figure = draw(frame, title.format(plan.preset))
            for suffix in suffixes:
                save(figure, arguments.out / f"{name}.{suffix}")
                print(arguments.out / f"{name}.{suffix}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
