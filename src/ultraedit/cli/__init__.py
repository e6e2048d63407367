"""The command line: one small file per group of verbs."""


def run() -> None:
    """Run the command `ultraedit`."""
    import sys

    try:
        from ultraedit.cli.app import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)
