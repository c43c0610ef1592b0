"""Progress without a terminal."""

from nclib.system import terminal


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys):
    said = []
    with terminal.progress_bar("training", said.append) as tell:
        tell(1, 10, "at once")
    assert said == []
    tell = terminal._lines("training", said.append, every=0.0)
    tell(5, 10, "2 of 4 runs")
    assert said == ["training: 50 % (2 of 4 runs)"]
    assert capsys.readouterr() == ("", "")
