# Two commands do it all on a fresh machine: `make audit` and `make test`.
# What CI uses is pinned here; the package itself accepts torch >= 2.11.
PYTHON ?= python3
TORCH = torch==2.13.0
TORCHAO = torchao==0.18.0
BIN = .venv/bin
MODEL = examples/01_mnist_cnn.py

.PHONY: audit test check rules readme install benchmark clean

install: .venv/installed

# torch first: a range that any release satisfies could otherwise fetch a build for another machine.
.venv/installed: pyproject.toml Makefile
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(TORCH) $(TORCHAO)
	$(BIN)/python -m pip install --quiet --editable '.[test,examples]' $(TORCH) $(TORCHAO)
	touch $@

audit: install
	$(BIN)/precision-audit $(MODEL) --policy fp8-training-hopper
	$(BIN)/precision-audit convert $(MODEL) --policy fp8-training-hopper --quiet --output-format concise -o out/

test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

rules: install
	$(BIN)/python -m precision_audit.rules README.md

readme: rules
	$(BIN)/python -m tests.write_readme

benchmark: install
	$(BIN)/python -m tests.benchmarks.versus_autocast
	$(BIN)/python -m tests.benchmarks.cost_of_tool
	$(BIN)/python -m tests.benchmarks.cost_of_evidence
	$(BIN)/python -m tests.benchmarks.predicted_error --only suite

clean:
	rm -rf .venv out
