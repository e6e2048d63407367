"""`python -m ultraedit` is the command `ultraedit`."""

from ultraedit.cli import run

if __name__ == "__main__":
    run()
