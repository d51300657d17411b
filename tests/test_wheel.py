import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def output(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([sys.executable, *command], cwd=cwd, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with the build backend that is installed: nothing is downloaded."""
    folder = tmp_path_factory.mktemp("wheel")
    output("-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT), cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_both_configuration_roots_whole(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for root in ("conf", "sweeps"):
        for path in (ROOT / root).rglob("*.yaml"):
            assert f"ablate/{path.relative_to(ROOT)}" in names
    assert {f"ablate/{path.name}" for path in (ROOT / "ablate").glob("*.py")} <= names
    assert {f"ablate/page/{path.name}" for path in (ROOT / "ablate" / "page").iterdir()} <= names


def test_an_installed_wheel_plans_the_rows_from_any_folder(wheel, tmp_path):
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    output(*pip, "--target", str(site), str(wheel), cwd=elsewhere)
    env = {**os.environ, "PYTHONPATH": str(site)}
    where = output("-c", "import ablate; print(ablate.__file__)", cwd=elsewhere, env=env)
    assert Path(where.strip()).is_relative_to(site)
    plan = output("-m", "ablate.run", "+sweep=row_A", "plan_only=true", "preset=smoke", cwd=elsewhere, env=env)
    rows = [line.split()[0] for line in plan.splitlines() if line.split()[1:2] == ["1"]]
    assert rows == ["base", "A_h1", "A_h4", "A_h16", "A_h32"]
    assert list(elsewhere.iterdir()) == []
