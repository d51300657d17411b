# `make demo`: from nothing to the table of (A). `make test`: ruff, mypy and pytest.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test clean
# pip compiles nothing; what a first import compiles must be kept, or every process compiles it again.
unexport PYTHONDONTWRITEBYTECODE

demo: .venv/demo
	$(BIN)/python -m ablate.run +sweep=row_A

test: .venv/test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest -n 4 --dist worksteal

.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable .
	touch $@

.venv/test: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv
