"""The command line, called as a user calls it."""

from click.testing import CliRunner

from bulkedge.cli import main


def bulkedge(*arguments, code=0):
    # pytest's workers have COLUMNS set, which would wrap the tables
    result = CliRunner(env={"COLUMNS": None}).invoke(main, [str(each) for each in arguments])
    assert result.exit_code == code, result.output
    return result
