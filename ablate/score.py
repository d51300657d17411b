"""Score a run's translations again, also with COMET: `python -m ablate.score RUN … [--split test] [--comet MODEL]`."""

import argparse
import sys
from importlib import metadata
from pathlib import Path

from ablate.bleu import ScoreError, score
from ablate.data import corpus as corpora
from ablate.data.source import read_lines
from ablate.named import runs_folder, select
from ablate.refuse import refuses
from ablate.rundir import RunDir, read_json


def scores_of(run: RunDir, split: str, comet_model: str | None = None) -> dict[str, float | str]:
    """Score the translations that a run has written; nothing is written.

    Args:
        run: finished, of whatever version: older ones have only sacreBLEU's BLEU in their records.
        split: dev or test.
        comet_model: a name or a checkpoint's path, as `comet_scores` takes it; None: no COMET.

    Raises:
        ScoreError: if the run has no translations of the split, or COMET is not there.
        CorpusError: if the prepared corpus is not there.
    """
    if not run.hypotheses(split).is_file():
        raise ScoreError(f"RUN={str(run.path)!r}: has no translations of {split}")
    corpus = corpus_of(run)
    hypotheses, references = list(read_lines(run.hypotheses(split))), corpus.text(split, "tgt")
    found: dict[str, float | str] = vars(score(hypotheses, references, corpus.manifest["languages"]["tgt"]))
    if comet_model is not None:
        found |= comet_score(corpus.text(split, "src"), hypotheses, references, comet_model)
    return found


def corpus_of(run: RunDir) -> corpora.Corpus:
    """Open a run's corpus; where its record was kept without what it was planned from, the same one prepared here.

    Raises:
        CorpusError: if it is not there.
    """
    if identity := read_json(run.identity):
        return corpora.reopen(Path(identity["corpus"]), identity["digests"])
    told = read_json(run.record)
    if (corpus := corpora.of_digests(told["corpus"]["digests"])) is not None:
        return corpus
    how = f"python -m ablate.prepare preset={told['preset']}"
    raise corpora.CorpusError(f"{run.record}: its corpus, {told['corpus']['name']}, is not prepared here; {how}")


def comet_score(sources: list[str], hypotheses: list[str], references: list[str], model: str) -> dict[str, float | str]:
    """Score with COMET (Rei et al. 2020), if the user has installed it: pip install unbabel-comet.

    Args:
        sources: one per sentence.
        hypotheses: the same number.
        references: the same number.
        model: a name that COMET downloads, such as Unbabel/wmt22-comet-da, or the path of a checkpoint.

    Raises:
        ScoreError: if it is not installed.
    """
    try:
        from comet import download_model, load_from_checkpoint
    except ImportError as err:
        raise ScoreError(f"--comet {model}: COMET is not installed ({err}); pip install unbabel-comet") from err
    path = model if Path(model).is_file() else download_model(model)
    texts = zip(sources, hypotheses, references, strict=True)
    sentences = [{"src": src, "mt": mt, "ref": ref} for src, mt, ref in texts]
    judged = load_from_checkpoint(path).predict(sentences, batch_size=8, gpus=0)
    signature = f"comet:{model}|version:{metadata.version('unbabel-comet')}"
    return {"comet": float(judged.system_score), "comet_signature": signature}


@refuses(ValueError)
def main(argv: list[str] | None = None) -> int:
    """Print the scores of each run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ablate.score", description="Score runs' translations again.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder or its name, as A_h4/2")
    parser.add_argument("--split", default="dev", choices=("dev", "test"), help="(default: %(default)s)")
    parser.add_argument("--comet", metavar="MODEL", help="a COMET model, too; needs unbabel-comet")
    arguments = parser.parse_args(argv)
    for run in arguments.runs:
        chosen = select(Path(runs_folder()), run)
        print(chosen.path)
        found = scores_of(chosen, arguments.split, arguments.comet)
        for name in ("bleu", "bleu_tok", "chrf", "comet"):
            if name in found:
                print(f"  {name:<8} {found[name]:7.3f}  {found[f'{name}_signature']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
