.PHONY: help demo test security spec bench lint format lock clean

help:  ## Show these targets
	@sed -n 's/^\([a-z]*\):.*## */  make \1: /p' Makefile

demo:  ## Run the example site with a worker on http://127.0.0.1:8000/
	@scripts/setup
	@exec .venv/bin/python scripts/demo.py

test:  ## Run the tests (ARGS="-k name" goes to pytest)
	@scripts/test $(ARGS)

security:  ## Run the tests that show the promises of docs/security.md
	@scripts/test -n 4 --dist worksteal -m security --long $(ARGS)

bench:  ## Measure throughput, latency and idle cost, compared with the bare driver
	@scripts/setup
	@.venv/bin/python -m benchmarks.quick $(ARGS)

spec:  ## Run the tests and print which test shows which requirement
	@scripts/test --spec $(ARGS)

lint:  ## Check format, lint, types, import contracts and migrations
	@scripts/lint

format:  ## Format the code
	@scripts/setup
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

lock:  ## Write requirements/dev.txt anew from pyproject.toml
	@scripts/lock

clean:  ## Remove .venv and the embedded databases
	@if [ -x .venv/bin/python ]; then .venv/bin/python -m project.postgres remove; fi
	rm -rf .venv .state
