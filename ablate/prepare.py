"""The command that prepares a corpus: `python -m ablate.prepare data=homeassistant`."""

import argparse
import sys

from ablate.compose import compose
from ablate.data.corpus import data_root, prepare
from ablate.refuse import refuses

EXAMPLES = """examples:
  python -m ablate.prepare                        the default corpus
  python -m ablate.prepare data=synthetic data.num_train=100000
  python -m ablate.prepare data=wmt14_ende data.mirror=https://mirror.example/wmt
  python -m ablate.prepare data=files data.train_src=my.en data.train_tgt=my.de data.dev_src=… data.dev_tgt=…

What was interrupted goes on when the command is given again. A prepared corpus is found at once;
it lies under $ABLATE_DATA, or else in the platform's cache folder"""


@refuses(ValueError, OSError)  # OSError: a folder that cannot be written, a full disk
def main(argv: list[str] | None = None) -> int:
    """Prepare the corpus that the overrides name and say what it is; gives the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ablate.prepare",
        description="Download or read a corpus, clean and split it, learn its subwords, and pack it.",
        epilog=f"{EXAMPLES} ({data_root()}).",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for ablate.run; only the corpus matters")
    parser.add_argument("--config-dir", metavar="FOLDER", help="a folder of your own configuration files")
    parser.add_argument(
        "--processes", type=int, default=0, metavar="N", help="that encode (default: one for each core); same result"
    )
    args = parser.parse_args(argv)
    if args.processes < 0:
        parser.error(f"argument --processes: {args.processes}: must be at least 0")

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    corpus = prepare(compose(args.overrides, args.config_dir).data, say, args.processes)
    print(corpus.describe())
    return 0


if __name__ == "__main__":
    sys.exit(main())
