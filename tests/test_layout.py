"""Imports point one way, heavy libraries have one door each, and what need not load torch does not."""

import ast
import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ablate.compose import PACKAGE

# From the bottom up: a module imports only from lines above its own. `data` and `model` are packages of several files.
ORDER = [
    "finding errors refuse rundir stop typeset serve",
    "config fragments ranks slurm",
    "check identity frozen",
    "scale params schedule data device stats bleu spawn ledger sbatch",
    "record estimate model adam beam cells power agreement mirror state",
    "loss checkpoint decode track judge draw probe pace",
    "evaluate parallel",
    "gradient",
    "compiled",
    "train",
    "attempt",
    "worker",
    "named",
    "compose status diff translate",
    "request prepare score job sync account",
    "plan",
    "launch history results footnote cost ask",
    "table submit logs",
    "run retry claims figures cancel site",
    "view doctor",
    "report",
    "dashboard",
]
# Only these may load torch: planning, the table and the commands around them do without.
TORCH = "model loss adam beam checkpoint decode evaluate parallel gradient compiled train attempt translate probe"
DOORS = {
    "hydra": {"compose", "run"},
    "sacrebleu": {"bleu", "data"},
    "submitit": {"sbatch"},
    "wandb": {"mirror", "account"},
    "wandb_workspaces": {"dashboard"},
    "pandas": {"table", "history", "draw"},
    "matplotlib": {"draw"},
    "jinja2": {"report"},
    "sentencepiece": {"data"},
    "torch": set(TORCH.split()),
}
LINE_OF = {module: number for number, line in enumerate(ORDER) for module in line.split()}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def module_of(path: Path) -> str:
    """Name the module of the picture that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def imports(path: Path) -> list[str]:
    """List the dotted names that a file imports anywhere in it, inside functions too."""
    names = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: imports are absolute"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    here = module_of(path)
    assert here in LINE_OF, f"say in ORDER, and in the README's picture, where {here} belongs"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "ablate" and parts[1] not in (here, "__version__"):
            assert LINE_OF[parts[1]] < LINE_OF[here], f"{here} imports {name}"


@pytest.mark.parametrize("library", list(DOORS))
def test_a_heavy_library_has_its_doors_and_no_other(library):
    users = {module_of(path) for path in FILES if any(name.split(".")[0] == library for name in imports(path))}
    assert users == DOORS[library]


def test_nobody_imports_another_modules_private_names():
    for path in FILES:
        private = [name for name in imports(path) if name.startswith("ablate.") and name.split(".")[-1].startswith("_")]
        assert [name for name in private if name != "ablate.__version__"] == []


def loaded(code: str, folder: Path, *heavy: str) -> list[str]:
    """Run code in a process of its own; gives which of these libraries it has loaded at its end."""
    ask = f"{code}\nimport sys\nprint('LOADED', [name for name in {heavy!r} if name in sys.modules])"
    environment = {**os.environ, "ABLATE_DATA": str(folder / "data"), "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", ask], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout.rsplit("LOADED ", 1)[1])


def as_command(module: str, *arguments: str) -> str:
    """Write the code that gives `python -m MODULE ARGUMENTS` and survives its exit."""
    argv = ["x", *arguments]
    return (
        f"import sys; sys.argv = {argv!r}\nfrom ablate.{module} import main\n"
        "try:\n    code = main()\nexcept SystemExit as end:\n    code = end.code\nassert not code, code"
    )


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("run", ["--help"]),
        ("run", ["+sweep=row_B", "preset=smoke", "plan_only=true"]),
        ("table", ["row_B", "--preset", "smoke"]),
        ("claims", ["row_B", "--preset", "smoke"]),
        ("figures", ["row_B", "--preset", "smoke"]),
        ("report", ["row_B", "--preset", "smoke"]),
        ("status", []),
        ("diff", ["--help"]),
        ("retry", ["--failed"]),
        ("cancel", ["--all"]),
        ("logs", ["--help"]),
        ("sync", ["--dry-run", "."]),
        ("prepare", ["--help"]),
        ("doctor", ["--help"]),
        ("worker", ["--help"]),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_command_that_trains_nothing_loads_no_torch(module, arguments, tmp_path):
    assert loaded(as_command(module, *arguments), tmp_path, "torch", "wandb", "sacrebleu") == []


def test_status_loads_no_configuration_and_no_pandas(tmp_path):
    assert loaded(as_command("status"), tmp_path, "torch", "hydra", "omegaconf", "pandas") == []


def test_the_worker_composes_nothing(tmp_path):  # P8
    code = "import ablate.worker, ablate.train, ablate.translate"
    assert loaded(code, tmp_path, "hydra", "ablate.compose", "pandas") == []
