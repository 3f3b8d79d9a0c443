"""What a published report would show that may be private."""

import pytest

from reports.exports import private

PRIVATE = [
    ("home folder", "see /home/jane/data for more", "/home/jane"),
    ("home folder", "in C:\\Users\\jane\\x", "C:\\Users\\jane"),
    ("absolute path", "cannot open /mnt/team/data.bin", "/mnt/team/data.bin"),
    ("address on a network", "no response from 10.1.2.3:2222", "10.1.2.3"),
    ("web address", "http://builds.corp.example/1?x=2", "http://builds.corp.example"),
    ("e-mail address", "by jane.doe@corp.example today", "jane.doe@corp.example"),
    ("secret", "TF_TOKEN_app=abc123", "assignment: TF_TOK..."),
    ("name of this machine or user", "failed on gpu-box-7.", "gpu-box-7"),
]


@pytest.mark.parametrize(("kind", "text", "found"), PRIVATE)
def test_what_may_be_private_is_found(kind, text, found):
    """Each kind, within a sentence."""
    shown = list(private.find("page", text, names=("gpu-box-7",)))

    assert any(of.kind == kind and of.text.startswith(found) for of in shown), shown


@pytest.mark.parametrize(
    "text",
    [
        "47.2 images/s, weak/strong, and/or, 1/2",
        "/usr/lib/python3.11/site.py and /proc/self/status",
        "~/data is a home folder that was shortened",
        "Linux 6.18.44, TensorFlow 2.21.0, 127.0.0.1 is this machine",
        "tokens per second; the secret of speed",
        "on gpu-box-70",
    ],
)
def test_what_every_report_has_is_not_private(text):
    """Otherwise nobody would read the list."""
    assert [] == list(private.find("page", text, names=("gpu-box-7",)))


def test_only_what_a_reader_sees_counts():
    """Neither styles nor scripts nor attributes; characters are as they are shown."""
    page = (
        "<style>a{b:/home/x/y}</style><script>'/home/z/w'</script>"
        '<p title="/home/q/r">at &#47;home/jane/x</p>'
    )
    shown = private.find("page", private.visible_text(page), names=())

    assert ["/home/jane"] == [of.text for of in shown if of.kind == "home folder"]


def test_names_that_say_nothing_are_not_searched(monkeypatch):
    """The user of a build machine is often called root or runner."""
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-box-7.corp.example")
    monkeypatch.setattr("getpass.getuser", lambda: "runner")

    expected = {"gpu-box-7.corp.example", "gpu-box-7"}
    assert expected == private.names_of_this_machine()


def test_a_user_without_a_name_is_no_error(monkeypatch):
    """As in a container that runs under a number."""

    def refuse():
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", refuse)
    monkeypatch.setattr("socket.gethostname", lambda: "localhost")

    assert set() == private.names_of_this_machine()
