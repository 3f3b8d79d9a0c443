"""Tokens in text are masked, whoever issued them; words of reports are not.

The tokens are drawn from the forms that their issuers publish, so that no file of the
project has one.
"""

import json
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from study_files import edit_record, published_file

from harness import ExitCode, main

_WORD = string.ascii_letters + string.digits


def _drawn(form, characters, number):
    """Returns a token of some form; the digit and the letter are in most of them."""
    rest = st.text(alphabet=characters, min_size=number - 2, max_size=number - 2)
    return rest.map(lambda drawn: form.format(drawn + characters[-1] + characters[0]))


_BIG = string.ascii_uppercase + string.digits
TOKENS = {
    "AWS": _drawn("AKIA{}", _BIG, 16),
    "GitHub": _drawn("ghp_{}", _WORD, 36),
    "GitHub fine-grained": _drawn("github_pat_{}", _WORD + "_", 60),
    "GitLab": _drawn("glpat-{}", _WORD, 20),
    "Slack": _drawn("xoxb-1234567890-{}", _WORD, 24),
    "Hugging Face": _drawn("hf_{}", string.ascii_letters, 34),
    "OpenAI": _drawn("sk-proj-{}", _WORD, 60),
    "Stripe": _drawn("sk_live_{}", _WORD, 24),
    "PyPI": _drawn("pypi-AgEI{}", _WORD, 60),
    "Weights & Biases": _drawn("wandb_v1_{}", _WORD, 40),
    "JSON web token": _drawn("eyJhbGciOiJIUzI1NiJ9.{}.abcDEF123", _WORD, 40),
    "private key": _drawn(
        "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----",
        _WORD,
        40,
    ),
    "random word": st.permutations(_WORD).map(lambda drawn: "aB3" + "".join(drawn)),
}
"""Strategies of tokens that are masked whole, wherever they stand."""
SECRETS = st.text(alphabet=_WORD, min_size=6, max_size=30).map(lambda word: f"z{word}q")
CONTEXTS = {
    "variable": "HF_TOKEN={}",
    "variable of Terraform": "TF_TOKEN_app={}",
    "password": "password: {}",
    "long name": "aws_secret_access_key = {}",
    "option": "login --token {} --rate 3",
    "option with an equals sign": "login --api-key={}",
    "words of a command": "login\0--hub-token\0{}\0--rate\x003",
    "list of a command": "['login', '--password', '{}']",
    "JSON": '{{"client_secret": "{}"}}',
    "JSON within JSON": '{{"a": "{{\\"api_key\\": \\"{}\\"}}"}}',
    "bearer": "Authorization: Bearer {}",
    "basic": '"Authorization": "Basic {}"',
    "bare header": "X-Api-Key: {}",
    "cookie": "Set-Cookie: session={}",
    "database": "postgres://jane:{}@db:5432/x",
    "git": "https://{}@git.example/x.git",
    "signature": "https://a.example/c?sv=2024&sig=0123{}",
}
"""What stands around a secret that has no form of its own."""
OF_ADDRESSES = ("database", "git", "signature")
"""Contexts that leave the machine without what stands behind the scheme."""
PRINTED = st.text(alphabet=string.ascii_lowercase + " .:,'()=[]/\n", max_size=60)


def shared(text):
    """Returns a text as it leaves the machine, in a record."""
    record = json.dumps({"notes": text}).encode()
    return json.loads(published_file("env.json", record))["notes"]


@pytest.mark.parametrize("name", TOKENS)
def test_a_token_is_masked_within_any_line(name):
    @settings(max_examples=15)
    @given(before=PRINTED, token=TOKENS[name], after=PRINTED)
    def check(before, token, after):
        text = shared(f"{before} {token} {after}")

        assert token not in text
        assert "***" in text
        assert shared(text) == text

    check()


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_secret_is_masked_by_what_stands_before_it(name):
    @settings(max_examples=15)
    @given(before=PRINTED, secret=SECRETS)
    def check(before, secret):
        text = shared(f"{before}\n{CONTEXTS[name].format(secret)}")

        assert secret not in text
        assert shared(text) == text

    check()


def test_the_user_reads_an_address_without_its_secret(make, synthetic, capsys):
    failed = synthetic.TrialStatus.FAILED
    fields = {"backends": ("in_graph",), "modes": (synthetic.WEAK,), "repeats": 15}
    store = make(statuses=synthetic.every(failed, repetitions=range(15)), **fields)
    paths = sorted(store.root.glob("trials/*/status.json"))

    @settings(max_examples=3)
    @given(st.lists(SECRETS, min_size=len(paths), max_size=len(paths)))
    def check(secrets):
        for number, (path, secret) in enumerate(zip(paths, secrets, strict=True)):
            line = CONTEXTS[OF_ADDRESSES[number % 3]].format(secret)
            failure = {"phase": "measure", "reason": "x", "traceback": f"{line}\n^^^"}
            edit_record(path, failure=failure)
        assert ExitCode.OK == main(("status", str(store.root)))
        text = capsys.readouterr().out

        assert len(paths) == text.count("^^^") == text.count("***")
        assert not any(secret in text for secret in secrets)
        for shown in ("postgres://***@db:5432/x", "https://***@git.example/x.git"):
            assert shown in text
        assert "https://a.example/c?sv=2024&sig=***" in text

    check()


def test_an_older_key_of_weights_and_biases_is_masked():
    key = "0123456789abcdef0123456789abcdef01234567"

    assert shared(f"wandb: using key {key}") == "wandb: using key ***"
    assert shared(f"commit {key} of the tree") == f"commit {key} of the tree"


@pytest.mark.parametrize(
    "text",
    [
        "tokens per second; the secret of speed; no password is needed",
        "primary_key: case 3; keys: 12, KeyError: 'rate'; per token: 12.5 ms",
        "rate=tokens/s: ([0-9.]+), or per token: ([0-9.]+)",
        "sha256:9b74c9897bac770ffc029102a200c5de9b74c9897bac770ffc029102a200c5de",
        "set HF_TOKEN=$TOKEN, password=***, api_key=<key>; ~/.cache/sk-learn",
        "gradient_tape/ResNet50/conv2_block1_1_conv/Conv2D/Conv2DBackpropFilter",
        "nvmlSystemGetCudaDriverVersion_v2, CLOCK_MONOTONIC, and/or, 47.2 images/s",
    ],
)
def test_words_of_reports_are_not_masked(text):
    assert shared(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see /home/jane/data for more", "see ~/data for more"),
        ("cannot open '/mnt/team/data.bin'", "cannot open '.../data.bin'"),
        ("--xla_dump_to=/mnt/team/x", "--xla_dump_to=.../x"),
        ("no response from 10.1.2.3:2222", "no response from ***:2222"),
        ("ipv6:fe80:0:0:0:1:2:3:4 is down", "ipv6:*** is down"),
        ("GET http://builds.corp.example/1?x=2 is 404", "GET http://*** is 404"),
        ("by jane.doe@corp.example today", "by *** today"),
        ("node7.cluster.local:2222 is lost", "***:2222 is lost"),
        ("process 1 on host 'n7' was lost", "process 1 on host '***' was lost"),
        (
            "/usr/lib/python3.11/site.py, /tmp/x/y",
            "/usr/lib/python3.11/site.py, /tmp/x/y",
        ),
        ("Linux 6.18.44, TensorFlow 2.21.0, 127.0.0.1", None),
    ],
)
def test_what_leaves_the_machine_does_not_say_whose_it_is(text, shown):
    assert shared(text) == (text if shown is None else shown)
    assert shared(shared(text)) == shared(text)


PIECES = ("a", "a_", "-a", "--a-a_", "a.", "eyJ-", "sk-", "token_", "/a", "a://", "@a.")


def test_long_text_takes_no_time():
    for piece in PIECES:
        assert shared(piece * (100_000 // len(piece)))
