"""The command line: one small file per group of verbs."""


def run() -> None:
    """Run the command `ultraedit`."""
    from ultraedit.cli.app import main

    main()
