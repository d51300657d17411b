"""The command that prepares a corpus: `python -m ablate.prepare data=homeassistant`."""

import argparse
import sys

from ablate.compose import compose
from ablate.data.corpus import data_root, prepare

EXAMPLES = """examples:
  python -m ablate.prepare                        the default corpus
  python -m ablate.prepare data=synthetic data.num_train=100000
  python -m ablate.prepare data=files data.train_src=my.en data.train_tgt=my.de data.dev_src=… data.dev_tgt=…

A prepared corpus is found again at once; it lies under $ABLATE_DATA, or else in the platform's cache folder"""


def main(argv: list[str] | None = None) -> int:
    """Prepare the corpus that the overrides name and say what it is; gives the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ablate.prepare",
        description="Download or read a corpus, clean and split it, learn its subwords, and pack it.",
        epilog=f"{EXAMPLES} ({data_root()}).",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for ablate.run; only data.* matters here")
    parser.add_argument("--config-dir", metavar="FOLDER", help="a folder of your own configuration files")
    args = parser.parse_args(argv)
    try:
        corpus = prepare(compose(args.overrides, args.config_dir).data, say=lambda line: print(line, file=sys.stderr))
    except (ValueError, OSError) as err:  # OSError: a folder that cannot be written, a full disk
        print(f"error: {err}", file=sys.stderr)
        return 2
    print(corpus.describe())
    return 0


if __name__ == "__main__":
    sys.exit(main())
