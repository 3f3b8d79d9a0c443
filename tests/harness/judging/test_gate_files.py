"""``gate --write``: what is no format or no file is refused before anything runs."""

import pytest

from harness.cli import exit_codes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gate.xml", "'gate.xml' is not FORMAT=FILE; use one of text, junit, github,"),
        ("pdf=gate.pdf", "'pdf=gate.pdf' is not FORMAT=FILE"),
        ("junit=", "'junit=' is not FORMAT=FILE"),
        ("junit=no/gate.xml", "'no/gate.xml' cannot be a file, since its folder does"),
        ("junit=.", "'.' cannot be a file, since it is a folder; choose another"),
    ],
)
def test_what_cannot_be_written_is_refused(harness, tmp_path, text, message):
    code, out, err = harness(
        "gate", "--workload=resnet50", "--baseline=HEAD", f"--write={text}"
    )

    assert (exit_codes.USAGE, "") == (code, out)
    assert message in err
    assert 1 == len(err.splitlines())
    assert [] == [*tmp_path.iterdir()]
