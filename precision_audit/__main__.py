"""`python -m precision_audit` is the `precision-audit` command."""

from precision_audit.cli import run

if __name__ == "__main__":
    run()
