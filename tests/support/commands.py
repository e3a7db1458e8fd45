"""The command line in this process: its output, or its one-line error."""

from fedqssl.cli.main import main


def cli(capsys, *words, code=0):
    """What a command prints; with an exit code, its error, which must be one line."""
    try:
        main([str(w) for w in words])
    except SystemExit as ended:
        assert (ended.code or 0) == code, capsys.readouterr().err
    out = capsys.readouterr()
    assert "Traceback" not in out.err
    if code:
        assert out.err.splitlines()[-1].startswith("error: ")
    return out.out if not code else out.err
